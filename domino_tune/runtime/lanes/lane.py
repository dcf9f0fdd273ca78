"""Comm lanes: one FIFO per process group; here on threads for gloo, in ``streams`` for CUDA.

Gloo's asynchronous collectives are not FIFO: two in flight share the link and end together. So a
lane on CPU is a thread that calls blocking collectives in issue order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch.distributed as dist

from domino_tune.runtime.clock import Tick
from domino_tune.runtime.lanes.call import Call, perform
from domino_tune.runtime.lanes.ending import PATIENCE_S, closes_at_exit, forget


class Handle(Protocol):
    """A collective in flight."""

    def wait(self) -> None:
        """Make the compute lane wait for it; raise its error."""
        ...

    def ticks(self) -> tuple[Tick, Tick]:
        """Return its start and end, once it is done."""
        ...


@dataclass
class ThreadHandle:
    """A collective on a lane's thread. ``span_ns`` is (start, end) once it is done."""

    name: str
    done: threading.Event = field(default_factory=threading.Event)
    span_ns: tuple[int, int] = (0, 0)
    error: BaseException | None = None

    def wait(self) -> None:
        """Block until done; raise the collective's error."""
        self.done.wait()
        if self.error is not None:
            raise self.error

    def ticks(self) -> tuple[Tick, Tick]:
        """Return start and end on the host's clock, ns."""
        return self.span_ns


class Lane(Protocol):
    """A FIFO of collectives over one process group."""

    def issue(self, name: str, call: Call) -> Handle:
        """Run ``call`` after all collectives and compute issued before."""
        ...

    def close(self) -> None:
        """Release threads and streams; no collective may be in flight."""
        ...


class HostLane:
    """A lane on CPU: one thread that calls ``work`` for each collective, in issue order."""

    def __init__(self, name: str, work: Callable[[Call], object]) -> None:
        self._perform = work
        self._queue: queue.SimpleQueue[tuple[ThreadHandle, Call] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"comm-{name}", daemon=True)
        self._thread.start()
        closes_at_exit(self)

    def issue(self, name: str, call: Call) -> ThreadHandle:
        """Queue a collective, whose tensors must be contiguous: gloo reduces column views wrongly,
        without an error."""
        for tensor in (call.source, call.target):
            assert tensor.is_contiguous(), f"{name}: collectives take contiguous tensors"
        handle = ThreadHandle(name)
        self._queue.put((handle, call))
        return handle

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            handle, call = item
            start = time.perf_counter_ns()
            try:
                self._perform(call)
            except BaseException as error:  # raised again in the waiting main thread
                handle.error = error
            handle.span_ns = (start, time.perf_counter_ns())
            handle.done.set()
            del item, call  # an idle lane must hold no buffer

    def close(self) -> None:
        """End the thread. One that is stuck in a collective after an error is left alone."""
        self._queue.put(None)
        self._thread.join(PATIENCE_S)
        forget(self)


class ThreadLane(HostLane):
    """A lane over a gloo group: blocking collectives."""

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.group = group
        super().__init__(name, partial(perform, group=group))
