"""Whether all ranks gave ``apply`` the same: what is whole on each must be equal."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from simulator.errors import InputError

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by size in bytes: sums of them are exact, in whatever order a device adds."""


def check_agreed(model: nn.Module, **given: Any) -> None:
    """Raise InputError, on all ranks, unless all have the same weights and were ``given`` the same.

    DDP would send rank 0's weights to all; here each rank cuts its shard from its own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    mine = {"weights": _digest(model), **{name: repr(value) for name, value in given.items()}}
    ranks: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, mine)
    for name in mine:
        other = next((at for at, one in enumerate(ranks) if one[name] != ranks[0][name]), None)
        if other is not None:
            raise InputError(
                f"Ranks 0 and {other} have different {name}. Give apply the same on all ranks: "
                "load the same checkpoint, or call torch.manual_seed before a model is made."
            )


def _digest(model: nn.Module) -> str:
    """Return a checksum of all parameters and their names."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue  # each rank reads its part of one folder
        words = parameter.detach().contiguous().view(_WORDS[parameter.element_size()])
        found.update(f"{name} {tuple(words.shape)} {words.sum(dtype=torch.int64).item()}".encode())
    return found.hexdigest()
