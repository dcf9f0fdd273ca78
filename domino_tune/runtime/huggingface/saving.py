"""Whole weights of a model that plays a plan, under the names of ``transformers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from domino_tune.runtime.huggingface.families import Family
from domino_tune.runtime.huggingface.fused import joined_fused
from simulator.errors import InputError


def whole_state_dict(model: nn.Module, family: Family) -> dict[str, torch.Tensor]:
    """Return the whole state on the CPU of rank 0, and {} on the others; all ranks must call.

    Tied weights are one tensor under both names.
    """
    main = not dist.is_initialized() or dist.get_rank() == 0
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


def save_pretrained(model: nn.Module, family: Family, folder: str | Path, **options: Any) -> None:
    """Save config and whole weights (safetensors) as ``transformers`` does; all ranks must call."""
    if "state_dict" in options:
        raise InputError("save_pretrained gathers the whole weights itself; leave state_dict out.")
    state = whole_state_dict(model, family)
    if not dist.is_initialized() or dist.get_rank() == 0:
        save: Any = type(model)
        save.save_pretrained(model, folder, state_dict=state, **options)
    if dist.is_initialized():
        dist.barrier()
