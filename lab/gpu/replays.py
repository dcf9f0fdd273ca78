"""Replays: work as a CUDA graph, run back to back, so that a GPU has the clock of a long run.

Nothing spins and nothing waits for launches. Where ops are timed, a graph holds an event before and
behind each; two graphs take turns, so that one runs while the other's events are read.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import torch

from domino_tune.base.errors import RunError
from domino_tune.runtime.clock import Clock, NoClock, Tick
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.graphs import EAGER_STEPS, root_cause
from domino_tune.runtime.session import Session
from lab.gpu.arena import since_ns, timed_event
from simulator.ops import Signature
from simulator.schedule import COMPUTE

QUEUED: Final = 3
"""Replays that the host is ahead of the device."""


class MarkClock:
    """A clock for a capture: each moment becomes an event of the graph, which every replay records
    anew."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Begin a step."""
        self.events.clear()

    def tick(self) -> Tick:
        """Return an event behind all work captured so far."""
        event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        event.record()
        self.events.append(event)
        return event

    def stop(self) -> None:
        """Do nothing: a capture runs nothing."""

    def at_ns(self, tick: Tick) -> int:
        """Return 0: the moment is known after a replay."""
        return 0


class Replay(NamedTuple):
    """Captured work. ``clock`` holds its ops' events, none where they are not timed; ``signatures``
    is of these ops. ``keeps``: what owns the memory that the graph reads; ``executor``: of a step.
    """

    graph: torch.cuda.CUDAGraph
    clock: Clock
    keeps: object
    signatures: tuple[Signature, ...] = ()
    executor: Executor | None = None

    def require_numbers(self) -> None:
        """Raise RunError where a step computed no numbers: its power would be another one."""
        if self.executor and not math.isfinite(float(self.executor.loss())):
            raise RunError("The replayed step's loss is no number: nothing was measured.")

    def op_ns(self) -> list[float]:
        """Return what each op took in the last replay, which has ended."""
        assert isinstance(self.clock, MarkClock)
        events = self.clock.events
        return [since_ns(a, b) for a, b in zip(events[::2], events[1::2], strict=True)]


class CaptureError(RunError):
    """A capture failed. Torch's random numbers cannot be trusted in this process any more."""


def captured(make: Callable[[], Callable[[], object]], clock: Clock) -> Replay:
    """Return a graph of the work that ``make`` returns, which runs eagerly before. Raise
    CaptureError where that fails.

    All of it is on one stream: a backward op runs where its forward did, and a capture may wait for
    no other stream.
    """
    usual, own = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    own.wait_stream(usual)
    with torch.cuda.stream(own):
        work = make()
        for _ in range(EAGER_STEPS):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            work()
    except (RuntimeError, AssertionError) as error:
        torch.cuda.set_stream(usual)  # a failed capture may leave its own stream current
        raise CaptureError(f"No graph could be captured: {root_cause(error)}") from error
    return Replay(graph, clock, work)


def captured_step(session: Session, executor: Executor, *, marked: bool = False) -> Replay:
    """Return a step of ``executor`` on the session's batch; ``marked``: with events around its
    compute ops."""
    executor.run_step(*session.batch)
    clock: Clock = MarkClock() if marked else NoClock()

    def play() -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        executor.play(*session.batch, clock if capturing else NoClock())

    replay = captured(lambda: play, clock)
    computes = tuple(op.signature for op in executor.ops if op.lane == COMPUTE)
    return replay._replace(keeps=session, signatures=computes, executor=executor)


def back_to_back(replay: Replay, seconds: float) -> list[float]:
    """Replay it for about ``seconds`` without a pause; return each replay's ns."""
    events: deque[torch.cuda.Event] = deque()
    found: list[float] = []
    stop_at = time.monotonic() + seconds
    last = timed_event()
    last.record()
    while time.monotonic() < stop_at or not found:
        replay.graph.replay()
        events.append(timed_event())
        events[-1].record()
        if len(events) > QUEUED:
            ended = events.popleft()
            ended.synchronize()
            found.append(since_ns(last, ended))
            last = ended
    torch.cuda.synchronize()
    for ended in events:
        found.append(since_ns(last, ended))
        last = ended
    return found


def timed_replays(steps: Sequence[Replay], seconds: float) -> Iterator[tuple[int, list[float]]]:
    """Replay marked steps in turn for about ``seconds``; yield the host's time (perf_counter_ns) at
    each one's end, and its ops' ns."""
    stop_at = time.monotonic() + seconds
    under_way: deque[tuple[Replay, torch.cuda.Event]] = deque()
    number = 0
    while time.monotonic() < stop_at or number < len(steps):
        step = steps[number % len(steps)]
        step.graph.replay()
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        under_way.append((step, end))
        number += 1
        if len(under_way) == len(steps):
            yield _ended(*under_way.popleft())
    for one in under_way:
        yield _ended(*one)


def _ended(step: Replay, end: torch.cuda.Event) -> tuple[int, list[float]]:
    end.synchronize()
    return time.perf_counter_ns(), step.op_ns()
