"""Confidence of a prediction: an interval from the expected errors of its look-ups.

Errors of one section are assumed fully correlated (a GEMM table that is too slow is so for all
shapes), sections independent. Only time on the critical path counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from simulator.cost import CostModel
from simulator.schedule import COMPUTE
from simulator.timeline import Timeline

LOW_SHARE: Final = 0.20
"""Confidence is low when more than this share of the time was extrapolated or assumed."""
MEDIUM_SHARE: Final = 0.05
UNSURE: Final = ("extrapolated", "assumed")

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
    sections: dict[str, float] = {}
    shares: dict[str, float] = {}
    far: dict[str, int] = {}
    for index in timeline.critical_path:
        op = timeline.templates[index]
        estimate = cost.estimate(op.signature)
        elapsed = timeline.end_ns[index] - timeline.start_ns[index]
        kind = op.signature.kind
        sections[kind] = sections.get(kind, 0.0) + elapsed * estimate.error
        shares[estimate.source] = shares.get(estimate.source, 0.0) + elapsed / total
        if estimate.source == "extrapolated":
            far[op.role] = far.get(op.role, 0) + elapsed
    if cost.contention.fit is not None:
        sections["contention"] = _stretched_ns(timeline, cost) * cost.contention.fit.error
    if cost.skew is not None:
        sections["skew"] = _compute_ns(timeline) * cost.skew.error
    half = math.sqrt(sum(part * part for part in sections.values()))
    warnings = tuple(
        f"{role}: looked up far outside the profile's range ({elapsed / total:.0%} of the time)."
        for role, elapsed in sorted(far.items(), key=lambda item: -item[1])
        if elapsed > 0.01 * total
    )
    return Confidence(
        low_ns=max(0, round(total - half)),
        high_ns=round(total + half),
        level=_level(sum(shares.get(source, 0.0) for source in UNSURE)),
        shares=dict(sorted(shares.items(), key=lambda item: -item[1])),
        warnings=warnings,
    )


def _stretched_ns(timeline: Timeline, cost: CostModel) -> int:
    """Return the time (ns) that contention added to compute ops on the critical path."""
    added = 0
    for index in timeline.critical_path:
        op = timeline.templates[index]
        if op.lane == COMPUTE:
            alone = cost.duration_ns(op.signature)
            added += max(0, timeline.end_ns[index] - timeline.start_ns[index] - alone)
    return added


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
