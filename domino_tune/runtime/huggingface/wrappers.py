"""What must not be put around a model that plays a plan, and refusals where somebody tries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY

from simulator.errors import InputError

_CHANGES: Final = (
    "resize_token_embeddings", "set_input_embeddings", "set_output_embeddings",
)  # fmt: skip


NOT_SHARDED: Final = (
    "A model that plays a plan is not wrapped by fully_shard or FSDP: its layers are one function, "
    "and its gradients are averaged over replicas already. Leave the wrapper out."
)


class _NotSharded(dict[str, Any]):
    """torch's record of the wrappers of a module; ``fully_shard`` reads it first."""

    def __contains__(self, name: object) -> bool:
        if name == "fully_shard":
            raise InputError(NOT_SHARDED)
        return False


class _NotReplicated:
    """The names of parameters that DDP ignores; DDP reads them first."""

    def __iter__(self) -> Iterator[str]:
        raise InputError(
            "DDP does not take parameters that are cut over ranks. A model that plays a plan "
            "averages its gradients over replicas itself: leave DDP out; for transformers' Trainer "
            "take PlanTrainer (domino_tune.runtime.huggingface.trainer), with Accelerate "
            "prepare_model(model, evaluation_mode=True)."
        )


def refuse_wrappers(model: nn.Module, *, cut: bool) -> None:
    """Have torch's wrappers and changes of the vocabulary refused in words; ``cut``: parameters
    are cut over ranks, which DDP does not take."""
    for module in model.modules():
        module.__dict__[REGISTRY_KEY] = _NotSharded()
    if cut:
        model._ddp_params_and_buffers_to_ignore = _NotReplicated()  # type: ignore[assignment]
    for name in _CHANGES:
        setattr(model, name, partial(_refuse, name))


def stay_on_the_host(model: nn.Module) -> None:
    """Let ``model.to`` do nothing where the model is on the CPU and shall be: torch copies what it
    moves to ``cpu:0``, as Trainer does, and the plan would play the original."""
    moved: Any = model.to

    def to(*arguments: Any, **named: Any) -> nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*arguments, **named)
        here = next(model.parameters())
        is_there = device is not None and device.type == here.device.type == "cpu"
        if is_there and dtype in (None, here.dtype):
            return model
        found: nn.Module = moved(*arguments, **named)
        return found

    model.to = to  # type: ignore[method-assign]


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise InputError(
        f"{name} changes parameters that the plan holds: call it before apply, make the plan for "
        "the vocabulary that results, and apply that."
    )
