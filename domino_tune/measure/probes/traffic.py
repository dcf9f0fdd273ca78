"""All-reduces back to back, to time what runs at the same time."""

from __future__ import annotations

import torch

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes.lane import Handle, Lane


def zeros_of(size_bytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a message: zeros of that type, as many as fit in ``size_bytes``, at least one."""
    return torch.zeros(max(1, size_bytes // dtype.itemsize), dtype=dtype, device=device)


class Traffic:
    """All-reduces of one size, back to back on a lane, while the caller does something else.

    All ranks must issue the same number.
    """

    def __init__(
        self, lane: Lane, size_bytes: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.lane = lane
        self.buffer = zeros_of(size_bytes, dtype, device)
        self.handles: list[Handle] = []

    def issue(self, count: int) -> None:
        """Issue ``count`` more, after those in flight."""
        self.handles += [self.lane.issue("traffic", self.buffer, "sum") for _ in range(count)]

    def drain(self) -> None:
        """Wait for all."""
        for handle in self.handles:
            handle.wait()

    def spans(self) -> list[tuple[Tick, Tick]]:
        """Return start and end of each, once all are done."""
        return [handle.ticks() for handle in self.handles]
