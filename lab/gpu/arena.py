"""An arena: ops on the compute stream while traffic runs on another one, the host ahead of both."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.gpu.events import Work, recorded, since_ns, ticks_around, timed_event
from domino_tune.runtime.clock import empty_ns
from domino_tune.runtime.head_start import HeadStart
from lab.gpu.timing import took_ns

OPS_NS: Final = 2_500_000
"""Time of the ops that are played together, alone."""
COVER: Final = 1.8
"""Time of the traffic beside them, alone, over theirs."""
MOST_CALLS: Final = 120
TRIES: Final = 6

Spans = list[tuple[float, float]]


class Traffic(NamedTuple):
    """What runs beside ops: ``issue`` launches one unit on ``stream``, which is current then."""

    stream: torch.cuda.Stream
    issue: Callable[[], object]


class Arena:
    """Plays ops and traffic, alone and beside each other."""

    def __init__(self) -> None:
        self.head_start = HeadStart(spin_ns=6_000_000)
        self.was_late = False

    def ops_alone(self, work: Work) -> float:
        """Return the median ns of one call, with calls back to back."""
        calls = 12
        for call in range(3):
            work(call)
        spans, _ = self._play(work, calls, None, 0)
        calls = max(12, min(MOST_CALLS, round(OPS_NS / statistics.median(_lengths(spans)))))
        spans, _ = self._play(work, calls, None, 0)
        return statistics.median(_lengths(spans))

    def traffic_alone(self, traffic: Traffic) -> float:
        """Return the median ns of one unit, with units back to back."""
        _, spans = self._play(None, 0, traffic, 12)
        return statistics.median(_lengths(spans)[1:])

    def concurrent(
        self, work: Work, traffic: Traffic, alone_ns: float, unit_ns: float, *, first: bool = True
    ) -> dict[str, Any]:
        """Play both concurrently, which alone take ``alone_ns`` and ``unit_ns``; ``first``: the
        traffic is launched before the ops. Return the times of those wholly during the others."""
        calls = max(8, min(100, round(OPS_NS / alone_ns)))
        units = min(MOST_CALLS, max(4, round(COVER * calls * alone_ns / unit_ns)))
        ops, traffics = self._play(work, calls, traffic, units, first=first)
        ops_in, traffics_in = inside(ops, traffics), inside(traffics, ops)
        return {
            "op_ns": statistics.median(_lengths(ops_in)) if ops_in else None,
            "op_mean_ns": statistics.fmean(_lengths(ops_in)) if ops_in else None,
            "collective_ns": statistics.median(_lengths(traffics_in)) if traffics_in else None,
            "ops": len(ops_in),
            "collectives": len(traffics_in),
        }

    def _play(
        self, work: Work | None, calls: int, traffic: Traffic | None, units: int,
        *, first: bool = True,
    ) -> tuple[Spans, Spans]:  # fmt: skip
        """Return (start, end) in ns of every op and every unit; try again while the host is
        late."""
        spans: tuple[Spans, Spans] = ([], [])
        for _ in range(TRIES):
            spans = self._try(work, calls, traffic, units, first=first)
            if not self.was_late:
                break
        return spans

    def _try(
        self, work: Work | None, calls: int, traffic: Traffic | None, units: int, *, first: bool
    ) -> tuple[Spans, Spans]:
        torch.cuda.synchronize()
        origin = timed_event()
        self.head_start.give()
        origin.record()
        sent = _send(traffic, units, origin) if first else []
        ticks = ticks_around(work, calls) if work else []
        if not first:
            sent = _send(traffic, units, origin)
        self.was_late = self.head_start.check()
        torch.cuda.synchronize()
        played, carried = (
            [(since_ns(origin, start), since_ns(origin, end)) for start, end in pairs]
            for pairs in (pairwise(ticks), sent)
        )
        return played, carried


def _send(
    traffic: Traffic | None, units: int, after: torch.cuda.Event
) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    """Launch units that wait for the head start only, not for ops issued before them; return the
    events around each."""
    if traffic is None:
        return []
    traffic.stream.wait_event(after)
    sent = []
    with torch.cuda.stream(traffic.stream):
        for _ in range(units):
            start = recorded()
            traffic.issue()
            sent.append((start, recorded()))
    return sent


def _lengths(spans: Spans) -> list[float]:
    return [end - start for start, end in spans]


def inside(spans: Spans, others: Spans) -> Spans:
    """Return the spans wholly between the first other's start and the last other's end."""
    first, last = others[0][0], others[-1][1]
    return [(start, end) for start, end in spans if first <= start and end <= last]


Timed = Callable[[Work], float]
"""Returns the ns of one call."""


def ops_timer(device: torch.device) -> Timed:
    """Return what times a call with calls back to back, without what events add; on a CPU, which
    only rehearses, one call."""
    arena = cache(Arena)  # made on the GPU, with the first case
    if device.type != "cuda":
        return lambda work: took_ns(device, lambda: work(0))
    return lambda work: arena().ops_alone(work) - empty_ns(device)
