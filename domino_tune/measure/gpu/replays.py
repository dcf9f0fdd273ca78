"""Replays: work as a CUDA graph, run back to back, so that a GPU has the clock of a long run.

Nothing spins and nothing waits for launches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.events import recorded, since_ns
from domino_tune.measure.gpu.works import first_works
from domino_tune.runtime.graphs import EAGER_STEPS, root_cause

QUEUED: Final = 3
"""Replays that the host is ahead of the device."""
CALLS: Final = 4
"""Calls of each of a family's works in a graph."""


class Replay(NamedTuple):
    """Captured work. ``keeps``: what owns the memory that the graph reads."""

    graph: torch.cuda.CUDAGraph
    keeps: object


class Ran(NamedTuple):
    """A replay that ended at ``at_ns`` (perf_counter) and took ``took_ns``; which one it was."""

    which: int
    at_ns: int
    took_ns: float


class CaptureError(RunError):
    """A capture failed. Torch's random numbers cannot be trusted in this process any more."""


def captured(make: Callable[[], Callable[[], object]]) -> Replay:
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
    return Replay(graph, work)


def family_replay(family: str) -> Replay:
    """Return a graph of ops of one family."""

    def make() -> Callable[[], None]:
        made = [work.make() for work in first_works() if work.family == family]

        def play() -> None:
            for work in made:
                for call in range(CALLS):
                    work(call)

        return play

    return captured(make)


def back_to_back(replays: Sequence[Replay], seconds: float) -> list[Ran]:
    """Replay them in turn for about ``seconds`` without a pause, each at least once."""
    under_way: deque[tuple[int, torch.cuda.Event]] = deque()
    found: list[Ran] = []
    last = recorded()

    def end() -> torch.cuda.Event:
        which, event = under_way.popleft()
        event.synchronize()
        found.append(Ran(which, time.perf_counter_ns(), since_ns(last, event)))
        return event

    stop_at = time.monotonic() + seconds
    count = 0
    while time.monotonic() < stop_at or count < len(replays):
        which = count % len(replays)
        replays[which].graph.replay()
        under_way.append((which, recorded()))
        count += 1
        if len(under_way) > QUEUED:
            last = end()
    while under_way:
        last = end()
    return found
