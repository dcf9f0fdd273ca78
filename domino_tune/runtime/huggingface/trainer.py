"""``PlanTrainer``: transformers' Trainer, of a model whose weights are cut over ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh

from domino_tune.runtime.huggingface.shard import whole_moments
from domino_tune.runtime.huggingface.weights import Saving
from simulator.errors import InputError


class PlanTrainer(transformers.Trainer):
    """A Trainer of a model that plays a plan, which has been applied. Tensor-parallel ranks get the
    same batches; what is saved is whole, and any Trainer resumes from it. Mix it into others:
    ``class Mine(PlanTrainer, SFTTrainer)``."""

    def __init__(self, model: Any, args: Any = None, **options: Any) -> None:
        saving = getattr(model, "save_pretrained", None)
        if not isinstance(saving, Saving):
            raise InputError("PlanTrainer takes a model that plays a plan: call apply first.")
        self._tp = saving.tp
        super().__init__(model, args, **options)
        if self._tp == 1:
            return
        # As for models that transformers itself has cut: no DDP, and all ranks save.
        self.is_distributed_loading_by_transformers = True
        saving.all_ranks_call = False
        shape = dist.get_world_size() // self._tp, self._tp
        self.accelerator.state.device_mesh = init_device_mesh(
            self.args.device.type, shape, mesh_dim_names=("dp_replicate", "tp")
        )

    def get_tp_size(self) -> int:
        """Return how many ranks share a batch."""
        return self._tp

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        held: Any = self.optimizer
        if self._tp > 1:
            whole = whole_moments(held)
            self.optimizer = SimpleNamespace(state_dict=lambda: whole)  # type: ignore[assignment]
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            self.optimizer = held
