"""Whole weights of a model that plays a plan, named as in ``transformers``: saved, and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from domino_tune.runtime.huggingface.copies import InParts, NotCopied
from domino_tune.runtime.huggingface.families import Family
from domino_tune.runtime.huggingface.fused import joined_fused, split_whole
from simulator.errors import InputError


class State(InParts):
    """The state of a model in parts."""

    refusal = (
        "This rank has its part of the weights only. Save them whole with "
        "model.save_pretrained(folder) on all ranks, or in parts with torch.distributed.checkpoint."
    )


def whole_state_dict(model: nn.Module, family: Family) -> dict[str, torch.Tensor]:
    """Return the whole state on the CPU of rank 0, and {} on the others; all ranks must call.

    Tied weights are one tensor under both names.
    """
    main = _is_main()
    found: dict[str, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            whole = tensor.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            seen[id(tensor)] = whole.contiguous().cpu() if main else whole[:0]
        if main:
            found[name] = seen[id(tensor)]
    return joined_fused(found, family)


def _is_main() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


class Saving:
    """``save_pretrained`` of a model whose weights are cut over ``tp`` ranks."""

    def __init__(self, model: nn.Module, family: Family, tp: int) -> None:
        self.model = model
        self.family = family
        self.tp = tp
        self.all_ranks_call = True
        """False: ``is_main_process`` tells on which rank alone it is called, as Trainer does."""

    def __call__(self, save_directory: str | Path, **options: Any) -> None:
        """Save config and whole weights (safetensors) as ``transformers`` does; all ranks must call
        where weights are cut."""
        if options.pop("state_dict", None) is not None:
            raise InputError(
                "save_pretrained gathers the whole weights itself; leave state_dict out."
            )
        alone = "is_main_process" in options and self.all_ranks_call
        if alone and self.tp > 1:
            raise InputError(
                "transformers' Trainer saves on one rank, and each has its part of the weights. "
                "Train with PlanTrainer (domino_tune.runtime.huggingface.trainer), which gathers "
                "them; in your own loop, call save_pretrained on all ranks, without "
                "is_main_process."
            )
        state = whole_state_dict(self.model, self.family)
        if _is_main() and options.get("is_main_process", True):
            save: Any = type(self.model)
            save.save_pretrained(self.model, save_directory, state_dict=state, **options)
        if dist.is_initialized() and not alone:
            dist.barrier()


class Loading(NotCopied):
    """Lets ``load_state_dict`` take whole weights: cuts them as the model's are."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def __call__(self, model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Replace whole tensors of ``state`` by DTensors."""
        held = dict(model.named_parameters(remove_duplicate=False))
        split_whole(state, self.family)
        for name, parameter in held.items():
            given = state.get(prefix + name)
            if (
                isinstance(parameter, DTensor)
                and given is not None
                and given.shape == (parameter.shape)
                and not isinstance(given, DTensor)
            ):
                state[prefix + name] = distribute_tensor(
                    given.to(parameter.device), parameter.device_mesh, parameter.placements,
                    src_data_rank=None,
                )  # fmt: skip
