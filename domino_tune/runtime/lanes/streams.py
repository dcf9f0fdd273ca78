"""Comm lanes on CUDA: their own streams, ordered by events; and lanes that are emulated.

An event with timing makes a single hardware queue wait: work launched after a collective and such
an event does not start before the collective has ended (pytorch issue 143890). So events record a
time only if somebody reads it: ``untimed`` lanes are for steps that are timed as a whole.

Lifetimes need no ``record_stream``: a handle keeps its tensor until the compute stream has a wait
for the collective. So memory that is freed later is reused only after that wait, in captured graphs
too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import torch
import torch.distributed as dist

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes import (
    ELEMENT_BYTES,
    MOVED_PER_BYTE,
    Chunks,
    Pace,
    PaceOf,
    PaceRow,
    reshapes,
)
from domino_tune.runtime.lanes.lane import Call, HostLane, Lane, perform, pretend
from domino_tune.runtime.launch_spec import for_new_threads
from simulator.schedule import DP, LANES, TP

HIGH_PRIORITY = -1


@dataclass
class StreamHandle:
    """A collective on a stream, between two events."""

    name: str
    start: torch.cuda.Event
    end: torch.cuda.Event
    call: Call | None

    def wait(self) -> None:
        """Make the compute stream wait for the collective."""
        torch.cuda.current_stream().wait_event(self.end)
        self.call = None

    def ticks(self) -> tuple[Tick, Tick]:
        """Return the two events."""
        return self.start, self.end


class StreamQueue:
    """A FIFO on its own stream, which runs concurrently with the compute stream."""

    def __init__(self, priority: int = HIGH_PRIORITY, *, timed: bool = True) -> None:
        self._timed = timed
        self.stream = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]

    def untimed(self) -> Self:
        """Return the same queue, whose events have no time."""
        found = copy(self)
        found._timed = False
        return found

    def launch(self, name: str, call: Call, work: Callable[[], object]) -> StreamHandle:
        """Have ``work`` issue kernels that use the tensors of ``call``, after everything issued so
        far."""
        start, end = _event(timed=self._timed), _event(timed=self._timed)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            start.record()
            work()
            end.record()
        return StreamHandle(name, start, end, call)

    def close(self) -> None:
        """Wait for the collectives in flight."""
        self.stream.synchronize()


class StreamLane(StreamQueue):
    """A lane over an NCCL group.

    A collective waits for all compute issued before it (NCCL's own rule) and runs on the lane's
    stream. Its reader makes the compute stream wait, not the host.
    """

    def __init__(self, group: dist.ProcessGroup, *, timed: bool = True) -> None:
        super().__init__(timed=timed)
        self.group = group

    def issue(self, name: str, call: Call) -> StreamHandle:
        """Launch a collective after everything issued so far."""
        for tensor in (call.source, call.target):
            assert tensor.is_contiguous(), f"{name}: collectives take contiguous tensors"
        return self.launch(name, call, partial(perform, call, self.group))


def untimed(lanes: Mapping[int, Lane]) -> dict[int, Lane]:
    """Return the same lanes, whose collectives have no times."""
    return {
        number: lane.untimed() if isinstance(lane, StreamQueue) else lane
        for number, lane in lanes.items()
    }


class SilentStreamLane:
    """A lane on CUDA whose collectives are done at once: a moment on the compute stream, and
    nothing to wait for."""

    def issue(self, name: str, call: Call) -> SilentHandle:
        """Return a handle that is done; see ``pretend``."""
        pretend(call)
        moment = _event()
        moment.record()
        return SilentHandle(moment)

    def close(self) -> None:
        """Do nothing."""


@dataclass
class SilentHandle:
    """A collective that took no time."""

    moment: torch.cuda.Event

    def wait(self) -> None:
        """Do nothing."""

    def ticks(self) -> tuple[Tick, Tick]:
        """Return the same moment twice."""
        return self.moment, self.moment


def _event(*, timed: bool = True) -> torch.cuda.Event:
    """Return an event: untimed inside a captured graph, where it only orders streams."""
    timed = timed and not torch.cuda.is_current_stream_capturing()
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


# Emulated collectives -----------------------------------------------------------------------------
# Each takes the time and the resources that a real one would.
#
# For a single rank of a group whose other ranks do not exist. No data arrives: what is reduced in
# place stays as it is. The durations are inputs, so a run does not prove them; it shows how
# collectives and compute slow each other.
#
# On CUDA a kernel of C CTAs of 512 threads streams bytes through HBM at a limited rate and then
# ends: it reads two buffers, adds them and writes a third, all larger than the L2 cache. A Hopper
# GEMM fills an SM's registers, so such a CTA keeps it out of its SM as one of NCCL's does. Small
# kernels find more room on its SM than with NCCL, whose CTAs take 80 KiB of shared memory, which
# Triton cannot request. On CPU the lane's thread waits.

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


class EmulatedWire:
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


class EmulatedStreamLane(StreamQueue):
    """Emulated collectives on their own stream; each waits for all compute issued before it."""

    def __init__(self, pace_of: PaceOf, wire: EmulatedWire | None = None) -> None:
        super().__init__()
        self._pace_of = pace_of
        self._wire = wire or EmulatedWire()

    def issue(self, name: str, call: Call) -> StreamHandle:
        """Launch an emulated collective; its target holds nothing of use."""
        pace, moved = self._pace_of(call), MOVED_PER_BYTE * call.size_bytes
        return self.launch(name, call, lambda: self._wire.carry(moved, pace))


class EmulatedLanes:
    """Lanes of a single rank, by the CTA count of a plan; made at the first call with a count."""

    def __init__(self, rows: Sequence[Sequence[Any]], device: torch.device) -> None:
        self._rows = [PaceRow(*row) for row in rows]
        self._device = device
        self._made: dict[int, Mapping[int, Lane]] = {}

    def of(self, comm_ctas: int) -> Mapping[int, Lane]:
        """Return every comm lane number with its lane, for plans of ``comm_ctas`` CTAs."""
        if comm_ctas not in self._made:
            numbers = (TP, DP)
            self._made[comm_ctas] = {number: self._lane(number, comm_ctas) for number in numbers}
        return self._made[comm_ctas]

    def close(self) -> None:
        """Close all lanes; no collective may be in flight."""
        for lanes in self._made.values():
            for lane in lanes.values():
                lane.close()

    def _lane(self, number: int, comm_ctas: int) -> Lane:
        paces = {
            (row.reshapes, row.size_bytes): Pace(row.duration_ns, row.ctas)
            for row in self._rows
            if (row.lane, row.plan_ctas) == (number, comm_ctas)
        }
        with for_new_threads():
            return emulated_lane(
                lambda call: paces[reshapes(call), call.size_bytes],
                self._device,
                f"emulated-{LANES[number]}",
            )
