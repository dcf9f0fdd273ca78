"""The machine that plans run on, as it is: with emulated collectives, and as fast as it is now."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from domino_tune.runtime.lanes import PaceRow, paces_of
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.plan_runs import Measured
from simulator.case import Case
from simulator.clock import Played
from simulator.cost import Changes, CostModel
from simulator.engine import play
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.predict import plays_of
from simulator.schedule import COMPUTE, Timeline

LEAST_NS: Final = 10_000
"""Times of shorter ops do not show the speed: clock and interpreter are too large a part."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan to run, its issue order, and its name in tables and traces."""

    name: str
    plan: SlicePlan
    order: LayerOrder


def as_emulated(case: Case, spec: LaunchSpec) -> Case:
    """Return the case of a single rank: nobody to wait for, collectives that take as long behind
    each other, and on CPU no contention, as collectives wait."""
    skew = case.profile.skew
    if skew is not None:
        skew = replace(
            skew, fit=replace(skew.fit, slowest_factor=1.0, rows=(), beside=(), error=0.0)
        )
    collectives = case.profile.collectives
    if collectives is not None:
        collectives = replace(collectives, idle_lane=None)
    alone = replace(case.profile, skew=skew, collectives=collectives)
    return replace(
        case, profile=replace(alone, contention=None) if spec.backend == "gloo" else alone
    )


def at_speed(case: Case, one: Candidate, run: Played, speed: float) -> Timeline:
    """Return the timeline of a machine whose compute has ``speed``, at the predicted clock."""
    now = replace(case, changes=Changes(compute_speed=speed))
    cost = now.cost_at(run.power.clock_mhz if run.power else None)
    plays = plays_of(now, one.plan, one.order, cost)
    return play(plays.schedule, plays.program(cost))


def plan_paces(
    cost: CostModel, plans: Sequence[SlicePlan], timelines: Sequence[Timeline]
) -> list[PaceRow]:
    """Return the times that the collectives of ``plans`` take alone, by the profile."""
    schedules = [
        (plan.comm_ctas, timeline.schedule) for plan, timeline in zip(plans, timelines, strict=True)
    ]
    return paces_of(cost, schedules)


def present_speed(cost: CostModel, bound: Measured) -> float | None:
    """Return the machine's speed relative to its profile; None without the bound's timeline.

    It is the median over the bound's compute ops of profiled over measured duration. Both are
    medians of single ops, so what a step takes beyond them (``step_excess``) is taken out.
    """
    if bound.timeline is None or bound.typical_ns is None:
        return None
    pairs = [
        (cost.duration_ns(op.signature), measured_ns)
        for op, measured_ns in zip(bound.timeline.ops, bound.typical_ns, strict=True)
        if op.lane == COMPUTE and measured_ns > 0
    ]
    long = [pair for pair in pairs if pair[1] >= LEAST_NS] or pairs
    beyond = 1.0 + cost.skew.step_excess if cost.skew else 1.0
    return statistics.median(profiled / measured for profiled, measured in long) / beyond
