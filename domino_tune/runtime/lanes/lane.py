"""Comm lanes: collectives as calls, one FIFO per process group; here on threads for gloo.

Gloo's asynchronous collectives are not FIFO: two in flight share the link and end together. So a
lane on CPU is a thread that calls blocking collectives in issue order.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist

from domino_tune.runtime.clock import Tick

# Call ---------------------------------------------------------------------------------------------
# One collective on tensors, and how a process group performs it.

Operation = Literal["sum", "max", "mean", "gather", "scatter"]


class Call(NamedTuple):
    """A collective that writes ``target``.

    ``sum``, ``max`` and ``mean`` reduce it in place, and ``source`` is the same tensor. ``gather``
    writes the ``source`` of all ranks, one after the other; ``scatter`` this rank's part of their
    sum.
    """

    operation: Operation
    source: torch.Tensor
    target: torch.Tensor

    @property
    def size_bytes(self) -> int:
        """Bytes of the full tensor (nccl-tests' "size")."""
        return max(self.source.nbytes, self.target.nbytes)


def all_reduce(tensor: torch.Tensor, operation: Operation = "sum") -> Call:
    """Return the reduction of ``tensor`` in place."""
    return Call(operation, tensor, tensor)


def mean(tensor: torch.Tensor) -> Call:
    """Return the mean of ``tensor`` over the ranks, in place."""
    return Call("mean", tensor, tensor)


def all_gather(source: torch.Tensor, ranks: int, into: torch.Tensor | None = None) -> Call:
    """Return the gather of [n, …] tensors ``into`` one of [n · ranks, …], or a new one."""
    if into is None:
        into = source.new_empty((source.shape[0] * ranks, *source.shape[1:]))
    return Call("gather", source, into)


def reduce_scatter(source: torch.Tensor, ranks: int) -> Call:
    """Return the sum of [n, …] tensors, scattered: each rank gets [n / ranks, …], a new tensor."""
    return Call("scatter", source, source.new_empty((source.shape[0] // ranks, *source.shape[1:])))


def perform(call: Call, group: dist.ProcessGroup) -> None:
    """Run ``call`` on ``group``, on NCCL asynchronously on the current stream.

    gloo has no reduce-scatter of its own: torch's takes as long as an all-reduce or longer. Ranks
    that exchange their parts and add them up send half as much.
    """
    if call.operation == "gather":
        _gather(call, group)
    elif call.operation == "scatter":
        _scatter(call, group)
    elif call.operation == "mean":
        _mean(call, group)
    else:
        reduction = dist.ReduceOp.MAX if call.operation == "max" else dist.ReduceOp.SUM
        dist.all_reduce(call.target, op=reduction, group=group)


def _mean(call: Call, group: dist.ProcessGroup) -> None:
    """Divide, then add: fp16 would overflow. NCCL does both in one kernel; gloo has no mean."""
    if call.target.is_cuda:
        dist.all_reduce(call.target, op=dist.ReduceOp.AVG, group=group)
    else:
        dist.all_reduce(call.target.div_(group.size()), group=group)


def _gather(call: Call, group: dist.ProcessGroup) -> None:
    if call.target.is_cuda:
        into_one(call, group)
    else:
        _exchange(call.target.chunk(group.size()), [call.source] * group.size(), group)


def _scatter(call: Call, group: dist.ProcessGroup) -> None:
    if call.target.is_cuda:
        into_one(call, group)
        return
    sent = call.source.chunk(group.size())
    parts = call.target.new_empty((group.size(), *call.target.shape))
    _exchange(parts.unbind(), sent, group)
    torch.sum(parts, 0, out=call.target)


def into_one(call: Call, group: dist.ProcessGroup) -> None:
    """Gather into, or scatter from, one tensor of all ranks' parts. NCCL would flatten lists of
    them, with one more buffer and copy each, and a capture would end in copies."""
    if call.operation == "gather":
        dist.all_gather_into_tensor(call.target, call.source, group=group)
    else:
        dist.reduce_scatter_tensor(call.target, call.source, group=group)


def _exchange(
    received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> None:
    """Send a tensor to each rank of a gloo group and receive one from each.

    Receive first: a gloo receive sends the peer a permission to send, which queues after data that
    is already on its way to that peer. gloo's own gather and all-to-all send first. So if one rank
    is later than the other, their data moves in one direction at a time and takes twice as long.
    """
    peers = [rank for rank in range(group.size()) if rank != group.rank()]
    works = [group.recv([received[peer]], peer, 0) for peer in peers]
    works += [group.send([sent[peer]], peer, 0) for peer in peers]
    received[group.rank()].copy_(sent[group.rank()])
    for work in works:
        work.wait()


def pretend(call: Call) -> None:
    """Fill ``target`` as if all ranks had this one's ``source``; do nothing for in-place calls.

    Ops after a collective that does not run then read ordinary numbers.
    """
    if call.operation == "gather":
        for part in call.target.chunk(len(call.target) // len(call.source)):
            part.copy_(call.source)
    elif call.operation == "scatter":
        call.target.copy_(call.source[: call.target.shape[0]])


# An orderly end of a process with gloo groups -----------------------------------------------------
# No thread may want Python while it finalizes.
#
# A thread of gloo first says that a collective is done, then gives its tensors back, for which
# torch takes Python's lock. Where Python finalizes in between, as on a busy machine, CPython ends
# that thread within C++ code that may not be unwound, and the process aborts: "terminate called
# without an active exception". The same befalls a lane's thread that returns from a collective.

THREAD_NAME: Final = "pt_gloo_runloop"
PAUSE_S: Final = 0.02  # longer than Python's switch interval, at which waiting threads wake up
PATIENCE_S: Final = 2.0  # a collective that never ends, after an error, must not keep the process
_TASKS: Final = Path("/proc/self/task")


_open: dict[int, Lane] = {}


def end_in_order() -> None:
    """Have gloo's threads waited for before Python finalizes. To call it once more is harmless."""
    atexit.unregister(_end)
    atexit.register(_end)


def closes_at_exit(lane: Lane) -> None:
    """Have ``lane`` closed then, too, unless ``forget`` is called before."""
    _open[id(lane)] = lane
    end_in_order()


def forget(lane: Lane) -> None:
    """Leave a lane out that was closed."""
    _open.pop(id(lane), None)


def settle(patience_s: float = PATIENCE_S) -> None:
    """Return when gloo's threads have nothing to do, or after ``patience_s``.

    This thread sleeps without Python's lock, so a thread that wanted it has moved meanwhile: it is
    awake, or the kernel has counted that it was. On other systems than Linux it only sleeps.
    """
    until = time.monotonic() + patience_s
    before = _threads()
    while time.monotonic() < until:
        time.sleep(PAUSE_S)
        now = _threads()
        if now == before and all("State:\tS" in lines for lines in now.values()):
            return
        before = now


def _end() -> None:
    for lane in list(_open.values()):
        lane.close()
    settle()


def _threads() -> dict[str, tuple[str, ...]]:
    """Return what the kernel says of each of gloo's threads: its state, how often it ran."""
    found = {}
    for task in _TASKS.glob("*"):
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        if lines and lines[0] == f"Name:\t{THREAD_NAME}":
            found[task.name] = tuple(
                line[: len("State:\tS")] if line.startswith("State:") else line
                for line in lines if line.startswith("State:") or "ctxt_switches" in line
            )  # fmt: skip
    return found


# Comm lanes ---------------------------------------------------------------------------------------
# One FIFO per process group; here on threads for gloo, in ``streams`` for CUDA.


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
