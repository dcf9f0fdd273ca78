"""Sums over tensor-parallel ranks that arrive slice by slice, while others are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.lane import Handle, Lane

Tensor = torch.Tensor


class Arriving(Tensor):
    """A tensor of ``parts``, each complete when its handle has been waited for.

    A stack waits for each part in turn. Any other reader needs no care: operators of torch wait for
    all and get an ordinary tensor.
    """

    parts: Sequence[Tensor]
    handles: Sequence[Handle]
    cut_along: int

    @staticmethod
    def of(like: Tensor, parts: Sequence[Tensor], handles: Sequence[Handle], dim: int) -> Arriving:
        """Return the tensor of the parts, of the shape of ``like``."""
        made: Arriving = Tensor._make_wrapper_subclass(
            Arriving, like.shape, dtype=like.dtype, device=like.device
        )
        made.parts, made.handles, made.cut_along = parts, handles, dim
        return made

    def whole(self) -> Tensor:
        """Wait for all parts; return them as one tensor."""
        for handle in self.handles:
            handle.wait()
        return torch.cat(tuple(self.parts), dim=self.cut_along)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Arriving({self.whole()!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute with the whole tensor."""
        args, kwargs = tree_map_only(Arriving, Arriving.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


class _Sum(torch.autograd.Function):
    """A sum over the ranks, under way; backward the identity (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], dim: int, lane: Lane) -> Tensor:
        parts = [part.contiguous() for part in torch.split(x.detach(), sizes, dim)]
        handles = [lane.issue("embed", all_reduce(part)) for part in parts]
        return Arriving.of(x, parts, handles, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0], None, None, None


def arriving_sum(x: Tensor, sizes: list[int], dim: int, lane: Lane) -> Tensor:
    """Return the sum of ``x`` over the ranks of ``lane``, which comes in parts of these sizes."""
    y: Tensor = _Sum.apply(x, sizes, dim, lane)  # type: ignore[no-untyped-call]
    return y
