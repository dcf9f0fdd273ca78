"""Inputs of merged weight gradients: slices of a value that are written side by side.

One GEMM reads all slices of dy and of x, so each is one matrix. Kernels of ours, and those of
torch that take a place to write to, write their slice into it; a gather does, too. For the others
the schedule has a copy (``simulator/issue_order.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import torch

from simulator.issue_order import ALL_SLICES, JOINED
from simulator.schedule import Op

IN_PLACE: Final = ("attn.rope_bwd", "attn.qk_norm_bwd", "attn.kv_bwd")
"""Roles whose first value is the tensor that they read first."""


class Side(NamedTuple):
    """The place of a slice's value: the name of slice 0's value, and the slice."""

    whole: str
    row: int


def sides_of(ops: Sequence[Op], slices: int) -> dict[str, Side]:
    """Return the values that merged weight gradients over ``slices`` slices read side by side."""
    found: dict[str, Side] = {}
    for op in reversed(ops):
        if op.slice == ALL_SLICES and op.role.endswith("_wgrad") and slices > 1:
            for names in pair_of(op, slices):
                sides = [Side(names[0], row) for row in range(slices)]
                found.update(zip(names, sides, strict=False) if len(names) > 1 else ())
        elif op.role in IN_PLACE and op.writes[0] in found:
            found[op.reads[0]] = found[op.writes[0]]
    return found


def pair_of(op: Op, slices: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values of dy and of x that a weight gradient over ``slices`` slices reads: one for
    each slice, or one for all."""
    first = 1 if op.reads[0].endswith(JOINED) else slices
    second = 1 if op.reads[first].endswith(JOINED) else slices
    return op.reads[:first], op.reads[first : first + second]


class Rooms:
    """Matrices whose slices are being written. ``sides``: the values that share one."""

    def __init__(self, sides: Mapping[str, Side], tokens: Sequence[int]) -> None:
        self._sides, self._tokens = sides, tokens
        self._open: dict[str, tuple[torch.Tensor, int]] = {}

    def room(self, name: str, rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
        """Return where to write the value ``name``: beside its other slices, or a new tensor."""
        side = self._sides.get(name)
        if side is None or rows != self._tokens[side.row]:  # a share of its tokens is read as it is
            return like.new_empty((rows, width))
        whole, left = self._open.pop(side.whole, (None, len(self._tokens)))
        if whole is None:
            whole = like.new_empty((sum(self._tokens), width))
        if left > 1:
            self._open[side.whole] = whole, left - 1
        start = sum(self._tokens[: side.row])
        return whole[start : start + rows]

    def clear(self) -> None:
        """Forget what a step that failed has begun."""
        self._open.clear()


def as_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return matrices, one below the other: a view where they are adjacent in memory."""
    first, rows = tensors[0], sum(len(one) for one in tensors)
    if len(tensors) == 1:
        return first
    size, place = first.shape[1] * first.element_size(), first.data_ptr()
    for one in tensors:
        beside = one.data_ptr() == place and one.is_contiguous()
        if not beside or one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(tuple(tensors))
        place += len(one) * size
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1), first.storage_offset())
