"""Comm lanes on CUDA: streams of their own, high priority, ordered by events.

Lifetimes need no ``record_stream``: a handle keeps its tensor until the compute stream was told to
wait for the collective, so memory freed later is used again behind that wait only. That holds
inside captured graphs too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes.lane import REDUCTIONS

HIGH_PRIORITY = -1


@dataclass
class StreamHandle:
    """A collective on a stream, between two events."""

    name: str
    start: torch.cuda.Event
    end: torch.cuda.Event
    tensor: torch.Tensor | None

    def wait(self) -> None:
        """Let the compute stream wait for the collective."""
        torch.cuda.current_stream().wait_event(self.end)
        self.tensor = None

    def ticks(self) -> tuple[Tick, Tick]:
        """The two events."""
        return self.start, self.end


class StreamQueue:
    """First in, first out, on a stream beside the compute stream."""

    def __init__(self, priority: int = HIGH_PRIORITY) -> None:
        self.stream = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]

    def launch(self, name: str, tensor: torch.Tensor, work: Callable[[], object]) -> StreamHandle:
        """Have ``work`` issue kernels that use ``tensor``, behind everything issued so far."""
        start, end = _event(), _event()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            start.record()
            work()
            end.record()
        return StreamHandle(name, start, end, tensor)

    def close(self) -> None:
        """Wait for what is in flight."""
        self.stream.synchronize()


class StreamLane:
    """A lane over an NCCL group.

    A collective waits for all compute issued before it (NCCL's own rule), runs on the lane's
    stream, and its reader makes the compute stream wait, not the host.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._queue = StreamQueue()

    def issue(self, name: str, tensor: torch.Tensor, reduction: str) -> StreamHandle:
        """Launch an all-reduce of ``tensor`` behind everything issued so far."""
        assert tensor.is_contiguous(), f"{name}: collectives take contiguous tensors"

        def work() -> None:
            dist.all_reduce(tensor, op=REDUCTIONS[reduction], group=self.group)

        return self._queue.launch(name, tensor, work)

    def close(self) -> None:
        """Wait for what is in flight."""
        self._queue.close()


class SilentStreamLane:
    """A lane whose collectives are done at once, for compute alone on CUDA: a moment on the
    compute stream, and nothing to wait for."""

    def issue(self, name: str, tensor: torch.Tensor, reduction: str) -> SilentHandle:
        """Nothing happens."""
        moment = _event()
        moment.record()
        return SilentHandle(moment)

    def close(self) -> None:
        """Nothing to give up."""


@dataclass
class SilentHandle:
    """A collective that took no time."""

    moment: torch.cuda.Event

    def wait(self) -> None:
        """Nothing to wait for."""

    def ticks(self) -> tuple[Tick, Tick]:
        """The same moment twice."""
        return self.moment, self.moment


def _event() -> torch.cuda.Event:
    """Events inside a captured graph order it; they cannot be read."""
    timed = not torch.cuda.is_current_stream_capturing()
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
