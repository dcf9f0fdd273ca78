"""Probes: each measures one thing, a little at a time, on all ranks at once.

Ranks take turns through all probes, round after round, so that what disturbs the machine for a
while disturbs all of them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import torch

from domino_tune.measure.traffic import Traffic
from domino_tune.runtime.clock import clock_for
from domino_tune.runtime.context import RankContext
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.session import Session
from domino_tune.runtime.silent import silent_lanes
from simulator.ops import Collective, Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.schedules import fixed_order

Samples = dict[Signature, list[int]]
Message = dict[str, Any]
BURST: Final = 4
"""Collectives of one size that a round times, behind one that brings the ranks together."""
BESIDE: Final = 2.5
"""All-reduces beside a step, as a multiple of what the step takes alone: enough to outlast it."""
COMPUTE_S: Final = 1e-3
"""Compute before a timed collective."""
SHORTEST_US: Final = 128
"""The shortest stretch of compute over which skew is looked at."""


class PlanProbe:
    """Plays a plan without communication: what its compute ops take, in place.

    ``found`` collects durations by signature, shared between probes: a signature that several
    plans have is timed in all of them. ``totals`` holds every rank's durations of a step.
    """

    def __init__(self, session: Session, plan: SlicePlan, found: Samples) -> None:
        self.session = session
        self.executor = _silent(session, plan)
        self.found = found
        self.overhead_ns: list[float] = []
        self.steps: list[list[list[int]]] = []

    def warm_up(self) -> None:
        """Once through, unmeasured."""
        self._play()

    def measure(self) -> None:
        """One step."""
        mine, makespan_ns = self._play()
        ops = [op for op in self.executor.ops if op.lane == COMPUTE]
        for op, duration_ns in zip(ops, mine, strict=True):
            self.found[op.signature].append(duration_ns)
        self.overhead_ns.append((makespan_ns - sum(mine)) / len(self.executor.ops))
        self.steps.append(self.session.context.all_gather_objects(mine))

    def _play(self) -> tuple[list[int], int]:
        self.session.context.barrier()
        timeline = self.executor.run_step(*self.session.batch).timeline
        return [end - start for _, start, end in timeline.lane(COMPUTE)], timeline.makespan_ns


class CollectiveProbe:
    """Times one collective through the runtime's own lane, nothing else running.

    Each counts from when the last rank came to it: the shortest span of all ranks'.
    """

    def __init__(self, context: RankContext, collective: Collective) -> None:
        self.context = context
        self.collective = collective
        self.lane = context.lanes[TP if collective.ranks == context.tp else DP]
        self.tensor = torch.zeros(max(1, collective.size_bytes // 4), device=context.device)
        self.clock = clock_for(context.device)
        self.square = torch.randn(256, 256)
        self.spans_ns: list[int] = []
        self.hand_overs_ns: list[float] = []

    def warm_up(self) -> None:
        """Once, unmeasured."""
        self._burst()

    def measure(self) -> None:
        """A burst."""
        spans, hand_overs = self._burst()
        ranks = self.context.all_gather_objects((spans, hand_overs))
        self.spans_ns += [min(together) for together in zip(*(r[0] for r in ranks), strict=True)]
        self.hand_overs_ns += [statistics.fmean(r[1]) for r in ranks]

    def _burst(self) -> tuple[list[int], list[int]]:
        self.context.barrier()
        spans, hand_overs = [], []
        for _ in range(1 + BURST):
            self._compute()
            self.clock.start()
            issued = self.clock.tick()
            handle = self.lane.issue("probe", self.tensor, "sum")
            handle.wait()
            resumed = self.clock.tick()
            self.clock.stop()
            begin, end = (self.clock.at_ns(tick) for tick in handle.ticks())
            spans.append(end - begin)
            hand_overs.append(self.clock.at_ns(resumed) - self.clock.at_ns(issued) - spans[-1])
        self.context.beat()
        return spans[1:], hand_overs[1:]

    def _compute(self) -> None:
        """As in training, compute stands before a collective: the link has been idle, and the core
        has not. On a GPU neither matters."""
        if self.context.device.type == "cuda":
            return
        until = time.perf_counter() + COMPUTE_S
        while time.perf_counter() < until:
            self.square @ self.square

    def message(self, hand_over_us: float) -> Message:
        """What is known so far. ``hand_over_us``: what handing any collective to a lane costs."""
        return {
            "kind": "collective",
            "signature": list(self.collective),
            "median_us": typical(self.spans_ns) / 1e3,
            "spread_us": spread(self.spans_ns) / 1e3,
            "hand_over_us": hand_over_us,
            "samples": len(self.spans_ns),
        }


class ContentionProbe:
    """Plays a plan alone, then beside all-reduces of one size that never stop; times both."""

    def __init__(self, session: Session, plan: SlicePlan, size_bytes: int) -> None:
        self.session = session
        self.executor = _silent(session, plan)
        self.size_bytes = size_bytes
        self.compute: dict[str, list[float]] = defaultdict(list)
        self.stretch: list[float] = []

    def warm_up(self) -> None:
        """Nothing: its plan was played before."""

    def measure(self) -> None:
        """One pair of steps."""
        context = self.session.context
        alone, alone_ns = self._play()
        calm_ns = self._calm_ns()
        wanted = max(1, math.ceil(BESIDE * (alone_ns[1] - alone_ns[0]) / calm_ns))
        traffic = Traffic(context.lanes[TP], self.size_bytes, context.device)
        traffic.issue(context.all_gather_objects(wanted)[0])
        beside, beside_ns = self._play(in_step=False)
        traffic.drain()
        busy = [
            end - start
            for start, end in _host_spans(traffic)
            if start > beside_ns[0] and end < beside_ns[1]
        ]
        mine = {kind: beside[kind] / alone[kind] for kind in alone}
        ranks = context.all_gather_objects((mine, _mean(busy) / calm_ns if busy else 1.0))
        for kind in mine:
            self.compute[kind].append(statistics.fmean(rank[0][kind] for rank in ranks))
        self.stretch.append(statistics.fmean(rank[1] for rank in ranks))

    def _calm_ns(self) -> float:
        """One all-reduce, of several back to back beside nothing."""
        self.session.context.barrier()
        traffic = Traffic(self.session.context.lanes[TP], self.size_bytes, torch.device("cpu"))
        traffic.issue(1 + BURST)
        traffic.drain()
        return _mean([end - start for start, end in _host_spans(traffic)][1:])

    def _play(self, *, in_step: bool = True) -> tuple[dict[str, int], tuple[int, int]]:
        """Time by kind of op; and when the step began and ended."""
        if in_step:
            self.session.context.barrier()
        began = time.perf_counter_ns()
        timeline = self.executor.run_step(*self.session.batch).timeline
        totals: dict[str, int] = defaultdict(int)
        for op, start, end in timeline.lane(COMPUTE):
            totals[op.signature.kind] += end - start
        return totals, (began, time.perf_counter_ns())

    def row(self) -> Message:
        """What is known so far."""
        return {
            "size_bytes": self.size_bytes,
            "compute": {kind: statistics.median(found) for kind, found in self.compute.items()},
            "collective": statistics.median(self.stretch),
            "samples": len(self.stretch),
        }


def contention_message(probes: Sequence[ContentionProbe]) -> Message:
    """One row a message size."""
    return {"kind": "contention", "rows": [probe.row() for probe in probes if probe.stretch]}


def hand_over_us(probes: Sequence[CollectiveProbe]) -> float:
    """What handing a collective to its lane, and waking up behind it, costs a rank."""
    return statistics.median(t for probe in probes for t in probe.hand_overs_ns) / 1e3


def _host_spans(traffic: Traffic) -> list[tuple[int, int]]:
    """(start, end) of each on the host's clock."""
    return [(start, end) for start, end in traffic.spans() if isinstance(start, int)]  # type: ignore[misc]


def _mean(times: Sequence[float]) -> float:
    return statistics.fmean(times)


def _silent(session: Session, plan: SlicePlan) -> Executor:
    return session.executor(plan, fixed_order(plan), silent_lanes(session.context.device))


def plan_messages(context: RankContext, probes: Sequence[PlanProbe], found: Samples) -> Message:
    """What all plans together tell: a row a signature, and the executor's own cost of an op."""
    overhead_ns = [value for probe in probes for value in probe.overhead_ns]
    return {
        "kind": "plan",
        "ops": _rows(context, found),
        "overhead_us": statistics.median(overhead_ns) / 1e3,
    }


def _rows(context: RankContext, found: Samples) -> list[Message]:
    """One row a signature: mean over ranks of the median, spread and number of samples."""
    mine = {
        signature: (statistics.median(times), spread(times), len(times))
        for signature, times in found.items()
        if times
    }
    ranks = context.all_gather_objects(mine)
    return [
        {
            "signature": [signature.kind, *signature],
            "median_us": statistics.fmean(rank[signature][0] for rank in ranks) / 1e3,
            "spread_us": max(rank[signature][1] for rank in ranks) / 1e3,
            "samples": sum(rank[signature][2] for rank in ranks),
        }
        for signature in mine
    ]


def skew_message(probes: Sequence[PlanProbe]) -> Message:
    """How far ranks drift apart: over a step, and in shorter stretches beyond that."""
    steps = [step for probe in probes for step in probe.steps]
    slowest = statistics.fmean(_ahead([sum(rank) for rank in step])[1] for step in steps)
    stretches: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        sums = [[0, *accumulate(rank)] for rank in step]
        length_us = SHORTEST_US
        while length_us * 2000 < sums[0][-1]:
            stretches[length_us] += _waits(sums, length_us * 1000, slowest)
            length_us *= 2
    rows = [
        (float(length_us), max(0.0, statistics.fmean(waits) / 1e3))
        for length_us, waits in sorted(stretches.items())
        if waits
    ]
    return {"kind": "skew", "slowest": slowest, "rows": rows, "samples": len(steps)}


def _ahead(times: Sequence[int]) -> tuple[float, float]:
    """The slowest's time less the mean of all, and divided by it."""
    mean = statistics.fmean(times)
    return max(times) - mean, max(times) / mean


def _waits(sums: list[list[int]], length_ns: int, slowest: float) -> list[float]:
    """For stretches of about ``length_ns`` one behind the other: the slowest rank's time in it
    less what the mean of all would take on the rank that is slowest over the step."""
    marks = [0]
    while (index := bisect_left(sums[0], sums[0][marks[-1]] + length_ns)) < len(sums[0]):
        marks.append(max(index, marks[-1] + 1))
    waits = []
    for begin, end in pairwise(marks):
        times = [rank[end] - rank[begin] for rank in sums]
        excess, _ = _ahead(times)
        mean = statistics.fmean(times)
        if mean < 1.5 * length_ns:
            waits.append((excess - (slowest - 1) * mean) * length_ns / mean)
    return waits


def typical(times: Sequence[float]) -> float:
    """The mean without the lowest and the highest tenth: times of small messages have two peaks,
    and sums of many are what counts."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def spread(times: Sequence[float]) -> float:
    """Half of the range that holds the middle half."""
    if len(times) < 4:
        return (max(times) - min(times)) / 2
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2
