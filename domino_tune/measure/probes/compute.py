"""Probes of compute and collectives: each measures one thing in small steps, on all ranks together.

Ranks go through all probes, round after round, so that a temporary disturbance of the machine
affects all of them alike.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, compress, pairwise
from typing import Any, Final, NamedTuple

import torch

from domino_tune.base.units import half_spread
from domino_tune.measure.probes import Traffic, call_of
from domino_tune.runtime.clock import empty_ns, probing_clock, was_late
from domino_tune.runtime.lanes.groups import meeting_lanes
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from simulator.ops import Collective, Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP, Timeline
from simulator.schedules import fixed_order
from simulator.specs import ClusterSpec

Samples = dict[Signature, list[int]]
Message = dict[str, Any]
BURST: Final = 4
"""Timed collectives of a burst, after a first one that synchronises the ranks."""
EVICTING: Final = 1 << 22
"""Elements of a GEMM before each timed collective: more than a core's own cache holds."""
SHORTEST_US: Final = 128
"""Shortest stretch of compute for which skew is measured."""
LEAST_SKEW_ERROR: Final = 0.005
SHORTEST_NS: Final = 100
"""Shortest duration of an op; below it, events show their resolution only."""
TRIES: Final = 5
"""Tries of a step whose launches were late on some rank; each try has a longer head start."""


class PlanProbe:
    """Plays a plan without communication and times its compute ops in place.

    ``found`` collects durations by signature, ns. Probes share it: a signature of several plans is
    timed in all of them.
    """

    def __init__(self, session: Session, plan: SlicePlan, found: Samples) -> None:
        context = session.context
        self.step = _Step(session, plan, meeting_lanes(context.lanes, context.device))
        self.found = found
        self.sums_ns: list[int] = []
        self.overhead_ns: list[float] = []

    def warm_up(self) -> None:
        """Play once, unmeasured."""
        self.step.warm_up()

    def measure(self) -> None:
        """Time one step."""
        played = self.step.play()
        if played is None:
            return
        for op, duration_ns in zip(self.step.ops, played.compute_ns, strict=True):
            self.found[op.signature].append(duration_ns)
        self.sums_ns.append(sum(played.compute_ns))
        if self.step.session.context.device.type != "cuda":  # there, LaunchProbe measures launches
            self.overhead_ns.append(played.host_ns / len(self.step.executor.ops))


class PlayedStep(NamedTuple):
    """A step on one rank: durations of its compute ops, which of them mostly ran beside a
    collective, and the host's other time. In ns."""

    compute_ns: list[int]
    beside: list[bool]
    host_ns: int = 0


class StepProbe:
    """Plays a plan as in training. ``steps`` holds every rank's part of each step."""

    def __init__(self, session: Session, plan: SlicePlan) -> None:
        self.step = _Step(session, plan)
        self.steps: list[list[PlayedStep]] = []

    def warm_up(self) -> None:
        """Play once, unmeasured."""
        self.step.warm_up()

    def measure(self) -> None:
        """Time one step."""
        played = self.step.play()
        if played is not None:
            self.steps.append(self.step.session.context.all_gather_objects(played))


class _Step:
    """A step of a plan to play and time, on ``lanes``; by default those of training."""

    def __init__(
        self, session: Session, plan: SlicePlan, lanes: Mapping[int, Lane] | None = None
    ) -> None:
        self.session = session
        self.clock = probing_clock(session.context.device)
        self.executor = session.executor(plan, fixed_order(plan), lanes, self.clock)
        self.ops = [op for op in self.executor.ops if op.lane == COMPUTE]

    def warm_up(self) -> None:
        """Play once, unmeasured."""
        self._play()

    def play(self) -> PlayedStep | None:
        """Return this rank's part of a step.

        On a GPU it is the first step that all ranks launched in time; None, on all ranks, if there
        was none in TRIES.
        """
        context = self.session.context
        for _ in range(TRIES):
            played = self._play()
            if not any(context.all_gather_objects(was_late(self.clock))):
                return played
        return None

    def _play(self) -> PlayedStep:
        context = self.session.context
        context.barrier()
        timeline = self.executor.run_step(*self.session.batch).timeline
        empty = empty_ns(context.device)
        spans = [(start, end) for _, start, end in timeline.lane(COMPUTE)]
        mine = [max(SHORTEST_NS, end - start - empty) for start, end in spans]
        meeting_ns = timeline.breakdown.exposed_comm_ns
        host_ns = timeline.makespan_ns - sum(mine) - meeting_ns
        return PlayedStep(mine, _beside(spans, timeline), host_ns)


def _beside(spans: Sequence[tuple[int, int]], timeline: Timeline) -> list[bool]:
    """Return, for each span, whether collectives are in flight during at least half of it."""
    flights = timeline.comm_spans
    return [
        2 * sum(max(0, min(end, b) - max(start, a)) for a, b in flights) >= max(1, end - start)
        for start, end in spans
    ]


class CollectiveProbe:
    """Times one collective on the runtime's own lane of that number; nothing else runs.

    A collective's time is the shortest span of all ranks: that of the last rank to begin. On CPUs
    it is timed behind an idle link, and again (``behind_ns``) right behind another one.
    """

    def __init__(self, context: RankContext, collective: Collective, lane: int) -> None:
        self.context = context
        self.collective = collective
        self.lane = context.lanes_for(collective.ctas)[lane]
        self.call = call_of(collective, context.device)
        self.clock = probing_clock(context.device)
        self.spans_ns: list[int] = []
        self.behind_ns: list[int] = []
        self.hand_overs_ns: list[float] = []

    def warm_up(self) -> None:
        """Play one burst, unmeasured."""
        self._burst()

    def measure(self) -> None:
        """Time a burst; on a GPU the first one that all ranks launched in time."""
        for _ in range(TRIES):
            ranks = self.context.all_gather_objects(self._burst())
            if not any(late for _, _, late in ranks):
                self._add([spans for spans, _, _ in ranks], [found for _, found, _ in ranks])
                return

    def _add(self, spans: list[list[int]], hand_overs: list[list[int]]) -> None:
        self.spans_ns += _shortest(spans)
        if self.context.device.type != "cuda":  # a stream has no thread to wake up
            self.hand_overs_ns += [statistics.fmean(rank) for rank in hand_overs]
            self.behind_ns += _shortest(self.context.all_gather_objects(self._behind()))

    def _behind(self) -> list[int]:
        """Return the spans, ns, of collectives that follow each other at once."""
        self.context.barrier()
        return Traffic(self.lane, self.call).host_burst_ns(BURST)

    def _burst(self) -> tuple[list[int], list[int], bool]:
        """Return spans, ns; the compute lane's extra wait for each, ns; whether any was late."""
        self.context.barrier()
        spans, hand_overs, late = [], [], False
        empty = empty_ns(self.context.device)
        for _ in range(1 + BURST):
            self._compute()
            self.clock.start()
            issued = self.clock.tick()
            handle = self.lane.issue("probe", self.call)
            handle.wait()
            resumed = self.clock.tick()
            self.clock.stop()
            late |= was_late(self.clock)
            begin, end = (self.clock.at_ns(tick) for tick in handle.ticks())
            spans.append(max(SHORTEST_NS, end - begin - empty))
            hand_overs.append(self.clock.at_ns(resumed) - self.clock.at_ns(issued) - spans[-1])
        self.context.beat()
        return spans[1:], hand_overs[1:], late

    def _compute(self) -> None:
        """Compute first, as before a collective in training: then the link is idle, and neither the
        message nor the lane's own code is in the core's cache. On a GPU nothing of that matters."""
        if self.context.device.type != "cuda":
            wide = _operand()
            wide @ wide.T

    def message(self, hand_over_us: float | None) -> Message:
        """Return the results so far; ``hand_over_us`` is the cost of handing over a collective."""
        found = {
            "kind": "collective",
            "signature": list(self.collective),
            "median_us": statistics.median(self.spans_ns) / 1e3,
            "spread_us": half_spread(self.spans_ns) / 1e3,
            "samples": len(self.spans_ns),
        }
        if self.behind_ns:
            found["behind_us"] = statistics.median(self.behind_ns) / 1e3
        return found if hand_over_us is None else {**found, "hand_over_us": hand_over_us}


@cache
def _operand() -> torch.Tensor:
    return torch.ones(64, EVICTING // 64)


def _shortest(ranks: Sequence[Sequence[int]]) -> list[int]:
    """Return the shortest span of all ranks, of each collective."""
    return [min(together) for together in zip(*ranks, strict=True)]


def hand_over_us(probes: Sequence[CollectiveProbe]) -> float | None:
    """Return a rank's cost of handing a collective to its lane and waking up after it, µs; None on
    a GPU, where it is part of the launch costs."""
    found = [time_ns for probe in probes for time_ns in probe.hand_overs_ns]
    return statistics.median(found) / 1e3 if found else None


def lane_of(collective: Collective, cluster: ClusterSpec) -> int:
    """Return the lane whose group has the shape of the collective's."""
    return TP if (collective.nodes, collective.per_node) == cluster.tp_group else DP


def plan_messages(context: RankContext, probes: Sequence[PlanProbe], found: Samples) -> Message:
    """Return the message of all plans: a row per signature, and on CPU the executor's own cost of
    an op while ``probes`` played."""
    overhead_ns = [value for probe in probes for value in probe.overhead_ns]
    message: Message = {"kind": "plan", "ops": _rows(context, found)}
    if overhead_ns:
        message["overhead_us"] = statistics.median(overhead_ns) / 1e3
        message["overhead_samples"] = len(overhead_ns)
    return message


def medians_of(found: Samples) -> dict[Signature, float]:
    """Return each signature's median duration, ns."""
    return {signature: statistics.median(times) for signature, times in found.items() if times}


def step_excess(context: RankContext, probes: Sequence[PlanProbe], found: Samples) -> float | None:
    """Return how much longer, as a share, steps without communication take than the medians of
    their ops add up to: the mean of all plans and ranks. None where no plan was played."""
    medians = medians_of(found)
    factors = [
        statistics.median(probe.sums_ns) / sum(medians[op.signature] for op in probe.step.ops)
        for probe in probes
        if probe.sums_ns
    ]
    if not factors:  # on all ranks alike
        return None
    ranks = context.all_gather_objects(statistics.fmean(factors))
    return max(0.0, statistics.fmean(ranks) - 1.0)


def _rows(context: RankContext, found: Samples) -> list[Message]:
    """Return one row per signature: the mean over ranks of the median, spread, sample count."""
    mine = {
        signature: (statistics.median(times), half_spread(times), len(times))
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


def skew_message(probes: Sequence[StepProbe], step_excess: float | None) -> Message:
    """Return how much slower the slowest rank is: over a step, and more so in short stretches, of
    compute alone and of compute beside collectives."""
    steps = [step for probe in probes for step in probe.steps]
    factors = [_ahead([sum(rank.compute_ns) for rank in step])[1] for step in steps]
    slowest = statistics.fmean(factors)
    error = max(LEAST_SKEW_ERROR, half_spread(factors) / slowest)
    return {
        "kind": "skew", "slowest": slowest, "step_excess": step_excess, "error": error,
        "samples": len(steps),
        "rows": _skew_rows([_durations(step, beside=False) for step in steps], slowest),
        "beside": _skew_rows([_durations(step, beside=True) for step in steps], slowest),
    }  # fmt: skip


def _durations(step: Sequence[PlayedStep], *, beside: bool) -> list[list[int]]:
    """Return each rank's durations of the ops that ran beside collectives on all ranks, or of the
    others."""
    chosen = [all(flags) == beside for flags in zip(*(rank.beside for rank in step), strict=True)]
    return [list(compress(rank.compute_ns, chosen)) for rank in step]


def _skew_rows(steps: Sequence[list[list[int]]], slowest: float) -> list[tuple[float, float]]:
    """Return (length, mean wait) in µs, for stretches of doubled lengths."""
    stretches: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        sums = [[0, *accumulate(rank)] for rank in step]
        length_us = SHORTEST_US
        while length_us * 2000 < sums[0][-1]:
            stretches[length_us] += _waits(sums, length_us * 1000, slowest)
            length_us *= 2
    return [
        (float(length_us), max(0.0, statistics.fmean(waits) / 1e3))
        for length_us, waits in sorted(stretches.items())
        if waits
    ]


def _ahead(times: Sequence[int]) -> tuple[float, float]:
    """Return the slowest's time minus the mean of all, and divided by the mean."""
    mean = statistics.fmean(times)
    return max(times) - mean, max(times) / mean


def _waits(sums: list[list[int]], length_ns: int, slowest: float) -> list[float]:
    """Return, for consecutive stretches of about ``length_ns``, the slowest rank's time minus what
    the stretch's mean would take on the rank that is slowest over the step, ns."""
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
