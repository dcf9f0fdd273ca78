"""Emulated collectives: each takes the time and the resources that a real one would.

For a single rank of a group whose other ranks do not exist. No data arrives: what is reduced in
place stays as it is. The durations are inputs, so a run does not prove them; it shows how
collectives and compute slow each other.

On CUDA a kernel of C CTAs of 512 threads streams bytes through HBM at a limited rate and then ends:
it reads two buffers, adds them and writes a third, all larger than the L2 cache. A Hopper GEMM
fills an SM's registers, so such a CTA keeps it out of its SM as one of NCCL's does. Small kernels
find more room on its SM than with NCCL, whose CTAs take 80 KiB of shared memory, which Triton
cannot request. On CPU the lane's thread waits.
"""

from __future__ import annotations

import time
from copy import copy
from functools import partial
from typing import Final, Self

import torch

from domino_tune.runtime.lanes.call import Call, pretend
from domino_tune.runtime.lanes.lane import HostLane, Lane
from domino_tune.runtime.lanes.pace import ELEMENT_BYTES, MOVED_PER_BYTE, Chunks, Pace, PaceOf
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamHandle, StreamQueue

BUFFER_BYTES: Final = 128 << 20
"""Size of each of three buffers: twice an H200's L2 cache."""


def emulated_lane(pace_of: PaceOf, device: torch.device, name: str = "emulated") -> Lane:
    """Return a lane for ``device`` whose collectives keep the pace that ``pace_of`` returns."""
    if device.type == "cuda":
        return EmulatedStreamLane(pace_of)
    return HostLane(name, partial(_keep_pace, pace_of))


def _keep_pace(pace_of: PaceOf, call: Call) -> None:
    until = time.perf_counter_ns() + pace_of(call).duration_ns
    pretend(call)
    while (left := until - time.perf_counter_ns()) > 0:
        time.sleep(left / 1e9)


class Wire:
    """The emulated link of one device: its buffers and its kernel."""

    def __init__(self) -> None:
        elements = BUFFER_BYTES // ELEMENT_BYTES
        self.left, self.right = (torch.randn(elements, device="cuda") for _ in range(2))
        self.sum = torch.empty_like(self.left)
        self._next = 0

    def carry(self, moved_bytes: int, pace: Pace, stamps: torch.Tensor | None = None) -> None:
        """Launch one collective on the current stream; it moves ``moved_bytes`` through HBM.

        ``stamps``: int64 [CTAs, 2], where each CTA writes when it began and ended, by the device's
        clock in ns.
        """
        from domino_tune.runtime.lanes.kernels import carry

        chunks = Chunks.of(moved_bytes, pace)
        carry(self.left, self.right, self.sum, self._next, chunks, pace.ctas, stamps)
        self._next = (self._next + chunks.count * pace.ctas * chunks.block) % self.left.numel()


class EmulatedStreamLane:
    """Emulated collectives on their own stream; each waits for all compute issued before it."""

    def __init__(
        self, pace_of: PaceOf, wire: Wire | None = None, priority: int = HIGH_PRIORITY
    ) -> None:
        self.pace_of = pace_of
        self.wire = wire or Wire()
        self.queue = StreamQueue(priority)

    def untimed(self) -> Self:
        """Return the same lane, whose collectives have no times."""
        found = copy(self)
        found.queue = self.queue.untimed()
        return found

    def issue(self, name: str, call: Call) -> StreamHandle:
        """Launch an emulated collective; its target holds nothing of use."""
        pace, moved = self.pace_of(call), MOVED_PER_BYTE * call.size_bytes
        return self.queue.launch(name, call, lambda: self.wire.carry(moved, pace))

    def close(self) -> None:
        """Wait for the collectives in flight."""
        self.queue.close()
