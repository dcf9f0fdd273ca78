"""Probes: measurements that ranks make together. May import runtime, base and the simulator."""

from __future__ import annotations

import torch

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes.lane import (
    Call,
    Handle,
    Lane,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from domino_tune.runtime.session import DTYPES
from simulator.ops import Collective

# Messages to time, and collectives back to back, to time what runs at the same time ---------------


def zeros_of(size_bytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a message: zeros of that type, as many as fit in ``size_bytes``, at least one."""
    return torch.zeros(max(1, size_bytes // dtype.itemsize), dtype=dtype, device=device)


def call_of(collective: Collective, device: torch.device) -> Call:
    """Return the collective on zeros."""
    ranks, dtype = collective.ranks, DTYPES[collective.dtype]
    each = max(1, collective.size_bytes // ranks // dtype.itemsize)
    if collective.op == "all_gather":
        return all_gather(torch.zeros(each, dtype=dtype, device=device), ranks)
    if collective.op == "reduce_scatter":
        return reduce_scatter(torch.zeros(each * ranks, dtype=dtype, device=device), ranks)
    return all_reduce(zeros_of(collective.size_bytes, dtype, device))


class Traffic:
    """A collective, back to back on a lane, while the caller does something else.

    All ranks must issue the same number.
    """

    def __init__(self, lane: Lane, call: Call) -> None:
        self.lane = lane
        self.call = call
        self.handles: list[Handle] = []

    def issue(self, count: int) -> None:
        """Issue ``count`` more, after those in flight."""
        self.handles += [self.lane.issue("traffic", self.call) for _ in range(count)]

    def drain(self) -> None:
        """Wait for all."""
        for handle in self.handles:
            handle.wait()

    def host_spans(self) -> list[tuple[int, int]]:
        """Return start and end of each on the host's clock, ns, on a CPU."""
        return [(start, end) for start, end in self.spans() if isinstance(start, int)]  # type: ignore[misc]

    def host_burst_ns(self, count: int) -> list[int]:
        """Play a first one, which synchronises the ranks, and ``count`` right behind each other, on
        a CPU; return how long these took, ns."""
        self.issue(1 + count)
        self.drain()
        return [end - start for start, end in self.host_spans()][1:]

    def spans(self) -> list[tuple[Tick, Tick]]:
        """Return start and end of each, once all are done."""
        return [handle.ticks() for handle in self.handles]
