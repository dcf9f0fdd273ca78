"""The stack's weights in the dtype that autocast asks for, cast once a step of the optimizer."""

from __future__ import annotations

from typing import Final
from weakref import WeakSet

import torch

from domino_tune.runtime.huggingface.doubts import Doubts, captures
from domino_tune.runtime.huggingface.shard import ShardedStack, local

Tensor = torch.Tensor
SAMPLES: Final = 4096
"""Weights that are compared with their casts before these are taken again."""
WRITTEN_UNSEEN: Final = (
    "Weights were changed through .data or a detached tensor while gradients add up, which torch "
    "does not count, so that a plan would compute with the old ones. Change them in place under "
    "torch.no_grad() (p.copy_, p.add_), by an optimizer, or after model.zero_grad()."
)
_WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_all: WeakSet[Casts] = WeakSet()


class Casts:
    """Casts of a stack's weights. One is kept while gradients add up: until an optimizer steps, the
    gradients are gone, or torch has counted a change of a weight."""

    def __init__(self, stack: ShardedStack, doubts: Doubts) -> None:
        self._stack, self._doubts = stack, doubts
        self._kept: tuple[tuple[object, ...], Tensor] | None = None
        _all.add(self)

    def of(self, dtype: torch.dtype, *, trains: bool) -> Tensor:
        """Return all weights in ``dtype``. Raise InputError, now or when the doubt is settled,
        where weights were changed and torch did not count it."""
        flat = self._stack.shards.model_copy
        if flat.dtype == dtype or not trains or captures(flat):
            return flat.to(dtype)
        made_of = dtype, flat._version, *(local(one.parameter)._version for one in self._stack.held)
        if self._kept is not None and self._kept[0] == made_of and self._adds_up():
            self._doubt(self._kept[1])
        else:
            self._kept = None  # frees it before the next one is made
            self._kept = made_of, flat.to(dtype)
        return self._kept[1]

    def drop(self) -> None:
        """Free what is kept."""
        self._kept = None

    def _adds_up(self) -> bool:
        """Return whether gradients of earlier micro-batches are there."""
        return any(one.parameter.grad is not None for one in self._stack.held)

    def _doubt(self, cast: Tensor) -> None:
        apart = max(1, len(cast) // SAMPLES)
        words = _WORDS[cast.element_size()]
        now = self._stack.shards.model_copy[::apart].to(cast.dtype)
        same = (now.view(words) == cast[::apart].contiguous().view(words)).all()
        self._doubts.require(same, WRITTEN_UNSEEN)


def drop_casts() -> None:
    """Free the casts of all stacks: an optimizer is about to step."""
    for casts in _all:
        casts.drop()
