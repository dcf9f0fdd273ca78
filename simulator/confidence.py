"""Confidence of a prediction: an interval from the expected errors, and a level from the sources.

Errors of one section are assumed fully correlated (a GEMM table that is too slow is so for all
shapes), sections independent. Of look-ups and launches only time on the critical path counts.
What contention is uncertain by is found by playing the schedule again with slowdowns that are
wrong by their expected error: a collective that is hidden may then be exposed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final, Literal

from simulator.contention import ContentionFit, Part
from simulator.cost import SOURCE_OF, CostModel
from simulator.estimate import Source
from simulator.program import compile_program
from simulator.recurrence import totals
from simulator.schedule import COMPUTE, TP, OpTemplate
from simulator.timeline import Timeline

LOW_SHARE: Final = 0.20
"""Confidence is low when more than this share of the time was extrapolated or assumed."""
MEDIUM_SHARE: Final = 0.05
UNSURE: Final[tuple[Source, ...]] = ("extrapolated", "assumed")

Level = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Interval of the iteration time, in ns; ``shares``: parts of the time by look-up source."""

    low_ns: int
    high_ns: int
    level: Level
    shares: dict[str, float]
    warnings: tuple[str, ...]


def confidence_of(timeline: Timeline, cost: CostModel) -> Confidence:
    """Return interval and level of ``timeline``, which was predicted with ``cost``."""
    total = timeline.makespan_ns
    spent: Counter[str] = Counter()
    unsure: defaultdict[str, float] = defaultdict(float)
    far: Counter[str] = Counter()
    elsewhere = total
    for index in timeline.critical_path:
        op = timeline.templates[index]
        estimate = cost.estimate(op.signature)
        elapsed = timeline.end_ns[index] - timeline.start_ns[index]
        alone = _alone_ns(op, cost)
        stretched = min(elapsed, max(0, elapsed - alone))
        waited = _waited_ns(op, cost, alone, stretched)
        unsure[op.signature.kind] += (elapsed - stretched) * estimate.error
        spent[estimate.source] += elapsed - stretched
        if stretched > waited:
            spent[_slowdown_source(op, cost)] += stretched - waited
        if waited:
            spent[_skew_source(cost)] += waited
        if estimate.source == "extrapolated":
            far[op.role] += elapsed
        elsewhere -= elapsed
    if elsewhere:
        spent[_waiting_source(cost)] += elsewhere
    unsure.update(_beyond_look_ups(timeline, cost, elsewhere))
    half = math.hypot(*unsure.values())
    shares = {source: time_ns / total for source, time_ns in spent.most_common()}
    return Confidence(
        low_ns=max(0, round(total - half)),
        high_ns=round(total + half),
        level=_level(sum(shares.get(source, 0.0) for source in UNSURE)),
        shares=shares,
        warnings=tuple(
            f"{role}: looked up far outside the profile's range "
            f"({elapsed / total:.0%} of the time)."
            for role, elapsed in far.most_common()
            if elapsed > 0.01 * total
        ),
    )


def _alone_ns(op: OpTemplate, cost: CostModel) -> int:
    """Return how long the op holds its lane alone, in ns, with a launch inside it."""
    inline = cost.launch.mode == "inline" and op.lane == COMPUTE
    return cost.duration_ns(op.signature) + (
        cost.launch.cost_ns.get(op.signature.kind, 0) if inline else 0
    )


def _waited_ns(op: OpTemplate, cost: CostModel, alone_ns: int, stretched_ns: int) -> int:
    """Return the part of the stretch (ns) that contention cannot explain: a collective's wait for
    the last rank."""
    fit = cost.contention.fit
    if cost.skew is None or op.lane == COMPUTE:
        return 0
    factors = (
        [fit.collective.factor, *(row.collective_factor for row in fit.by_size)] if fit else []
    )
    most = (max(factors, default=1.0) - 1) * cost.contention.strength
    return max(0, stretched_ns - round(alone_ns * most))


def _slowdown_source(op: OpTemplate, cost: CostModel) -> Source:
    """Return the source of what contention added to the op."""
    fit = cost.contention.fit
    if fit is None:
        return "assumed"
    return (fit.law(op.signature.kind) if op.lane == COMPUTE else fit.collective).kind


def _waiting_source(cost: CostModel) -> Source:
    """Return the source of waits between ops: for the host, else of ranks for each other."""
    return cost.launch.source if cost.launch.mode == "async" else _skew_source(cost)


def _skew_source(cost: CostModel) -> Source:
    """Return the source of ranks' waits for each other."""
    skew = cost.profile.skew
    return SOURCE_OF[skew.provenance.kind] if skew is not None else "assumed"


def _beyond_look_ups(timeline: Timeline, cost: CostModel, waiting_ns: int) -> dict[str, float]:
    """Return the expected errors (ns) of launches, skew and contention."""
    found = {"launch": waiting_ns * cost.launch.error}
    if cost.skew is not None:
        found["skew"] = _compute_ns(timeline) * cost.skew.error
    if cost.contention.fit is not None and not cost.contention.is_off:
        found |= _contention_ns(timeline, cost, cost.contention.fit)
    return found


def _contention_ns(timeline: Timeline, cost: CostModel, fit: ContentionFit) -> dict[str, float]:
    """Return by how much longer the schedule takes (ns) when a part of the law is too small."""
    parts: list[Part] = ["compute", "collectives"]
    if any(op.lane > TP for op in timeline.templates):
        parts.append("links")
    worse = {
        part: totals(compile_program(timeline.schedule, cost.beside(fit.worse(part)))).makespan_ns
        for part in parts
    }
    return {f"contention of {part}": abs(end - timeline.makespan_ns) for part, end in worse.items()}


def _compute_ns(timeline: Timeline) -> int:
    """Return the time (ns) of compute ops on the critical path: the slowest rank's."""
    return sum(
        timeline.end_ns[index] - timeline.start_ns[index]
        for index in timeline.critical_path
        if timeline.templates[index].lane == COMPUTE
    )


def _level(unsure: float) -> Level:
    if unsure > LOW_SHARE:
        return "low"
    return "medium" if unsure > MEDIUM_SHARE else "high"
