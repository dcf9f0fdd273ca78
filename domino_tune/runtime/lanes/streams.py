"""Comm lanes on CUDA: their own streams of high priority, ordered by events.

An event with timing makes a single hardware queue wait: work launched after a collective and such
an event does not start before the collective has ended (pytorch issue 143890). So events record a
time only if somebody reads it: ``untimed`` lanes are for steps that are timed as a whole.

Lifetimes need no ``record_stream``: a handle keeps its tensor until the compute stream has a wait
for the collective. So memory that is freed later is reused only after that wait, in captured graphs
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, runtime_checkable

import torch
import torch.distributed as dist

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes.call import Call, perform, pretend
from domino_tune.runtime.lanes.lane import Lane

HIGH_PRIORITY = -1


@runtime_checkable
class Timed(Protocol):
    """A lane whose collectives have times."""

    def untimed(self) -> Lane:
        """Return the same lane, whose collectives have none."""
        ...


def untimed(lanes: Mapping[int, Lane]) -> dict[int, Lane]:
    """Return the same lanes, whose collectives have no times."""
    return {
        number: lane.untimed() if isinstance(lane, Timed) else lane
        for number, lane in lanes.items()
    }


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


class StreamLane:
    """A lane over an NCCL group.

    A collective waits for all compute issued before it (NCCL's own rule) and runs on the lane's
    stream. Its reader makes the compute stream wait, not the host.
    """

    def __init__(self, group: dist.ProcessGroup, *, timed: bool = True) -> None:
        self.group = group
        self._queue = StreamQueue(timed=timed)

    def untimed(self) -> Self:
        """Return the same lane, whose collectives have no times."""
        found = copy(self)
        found._queue = self._queue.untimed()
        return found

    def issue(self, name: str, call: Call) -> StreamHandle:
        """Launch a collective after everything issued so far."""
        for tensor in (call.source, call.target):
            assert tensor.is_contiguous(), f"{name}: collectives take contiguous tensors"
        return self._queue.launch(name, call, partial(perform, call, self.group))

    def close(self) -> None:
        """Wait for the collectives in flight."""
        self._queue.close()


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
