"""What a batch's tensors must fulfil, read without keeping the host from launching ahead.

To read a number that a GPU has yet to compute makes the host wait for all that was launched. So
only the first answer is waited for when it is asked for. Of a later one a copy is under
way while forward is launched, and it is read when backward begins: on every rank alike, before any
gradient, and while the GPU still has that forward to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from domino_tune.runtime.huggingface.eager import eager
from simulator.errors import InputError


@dataclass(kw_only=True)
class Doubts:
    """Answers that are still to be read. ``defers``: to read one makes the host wait, as on a
    GPU."""

    defers: bool
    _open: list[tuple[Callable[[], bool], str]] = field(default_factory=list)
    _trusted: bool = False

    @eager
    def require(self, holds: torch.Tensor, refusal: str) -> None:
        """Raise InputError(refusal) unless ``holds``, one truth on its device: now, or at the next
        ``settle``. Without gradients no backward will settle it, so it is now. A captured graph has
        no answer yet, and none is looked for."""
        if captures(holds):
            return
        self._open.append((_under_way(holds), refusal))
        if not (self.defers and self._trusted and torch.is_grad_enabled()):
            self.settle()
        self._trusted = True

    @eager
    def settle(self) -> None:
        """Raise InputError for the first that does not hold."""
        found, self._open = self._open, []
        for holds, refusal in found:
            if not holds():
                raise InputError(refusal)


def captures(tensor: torch.Tensor) -> bool:
    """Return whether what is done with ``tensor`` becomes a CUDA graph, whose capture no host may
    wait in."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _under_way(holds: torch.Tensor) -> Callable[[], bool]:
    """Return what waits for ``holds``, and no longer, and returns it."""
    if not holds.is_cuda:
        return partial(bool, holds)
    host = torch.empty((), dtype=torch.bool, pin_memory=True)
    host.copy_(holds, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> bool:
        copied.synchronize()
        return bool(host)

    return read
