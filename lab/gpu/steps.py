"""Steps as CUDA graphs. Where ops are timed, a graph holds an event before and after each; two
graphs take turns, so that one runs while the other's events are read."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.events import since_ns
from domino_tune.measure.gpu.replays import Replay, captured
from domino_tune.runtime.clock import Clock, NoClock, Tick
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.session import Session
from simulator.ops import Signature
from simulator.schedule import COMPUTE


class MarkClock:
    """A clock for a capture: each moment becomes an event of the graph, which every replay records
    anew."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Begin a step."""
        self.events.clear()

    def tick(self) -> Tick:
        """Return an event after all work captured so far."""
        event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        event.record()
        self.events.append(event)
        return event

    def stop(self) -> None:
        """Do nothing: a capture runs nothing."""

    def at_ns(self, tick: Tick) -> int:
        """Return 0: the moment is known after a replay."""
        return 0

    def op_ns(self) -> list[float]:
        """Return what each op took in the last replay, which has ended."""
        pairs = zip(self.events[::2], self.events[1::2], strict=True)
        return [since_ns(a, b) for a, b in pairs]


class Step(NamedTuple):
    """A captured step. ``marks`` holds its ops' events, none where they are not timed; their
    ``signatures``."""

    replay: Replay
    marks: MarkClock
    signatures: tuple[Signature, ...]
    executor: Executor

    def require_numbers(self) -> None:
        """Raise RunError where it computed no numbers: its power would be another one."""
        if not math.isfinite(float(self.executor.loss())):
            raise RunError("The replayed step's loss is no number: nothing was measured.")


def captured_step(session: Session, executor: Executor, *, marked: bool = False) -> Step:
    """Return a step of ``executor`` on the session's batch; ``marked``: with events around its
    compute ops."""
    executor.run_step(*session.batch)
    marks = MarkClock()
    clock: Clock = marks if marked else NoClock()

    def play() -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        executor.play(*session.batch, clock if capturing else NoClock())

    replay = captured(lambda: play)._replace(keeps=session)
    computes = tuple(op.signature for op in executor.ops if op.lane == COMPUTE)
    return Step(replay, marks, computes, executor)


def timed_replays(steps: Sequence[Step], seconds: float) -> Iterator[tuple[int, list[float]]]:
    """Replay marked steps in turn for about ``seconds``; yield the host's time (perf_counter_ns) at
    each one's end, and its ops' ns."""
    stop_at = time.monotonic() + seconds
    under_way: deque[tuple[Step, torch.cuda.Event]] = deque()
    number = 0
    while time.monotonic() < stop_at or number < len(steps):
        step = steps[number % len(steps)]
        step.replay.graph.replay()
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        under_way.append((step, end))
        number += 1
        if len(under_way) == len(steps):
            yield _ended(*under_way.popleft())
    for one in under_way:
        yield _ended(*one)


def _ended(step: Step, end: torch.cuda.Event) -> tuple[int, list[float]]:
    end.synchronize()
    return time.perf_counter_ns(), step.marks.op_ns()
