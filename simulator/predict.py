"""Predictions for the plans of one case; everything except the plan is fixed."""

from __future__ import annotations

from dataclasses import replace

from simulator import clock
from simulator.build import built_once
from simulator.case import Case
from simulator.clock import Played, UnsureClocks, settle
from simulator.cost import CostModel
from simulator.engine import play
from simulator.issue_order import LayerOrder
from simulator.ordering import order_of
from simulator.pipeline.predict import busiest_schedule, played_pipeline
from simulator.plan import SlicePlan
from simulator.repriced import Repriced, repriced
from simulator.schedule import Schedule
from simulator.timeline import Timeline
from simulator.totals import Totals


def played(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Played:
    """Return the schedule of ``plan`` at its clock, and what the fast engine says of it.

    ``order`` replays a stored order; without it the plan's own order is taken or planned. Of a
    pipeline it is what the busiest rank plays, and the whole iteration's time.
    """
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).busiest
    schedule = scheduled(case, plan, order)
    found = settle(schedule, case.cost, case.power, case.cluster.clock_mhz)
    return replace(found, totals=found.totals.with_constant(case.constant_ns))


def unsure_clocks(case: Case, found: Played) -> UnsureClocks | None:
    """Return the clocks that ``found`` may have instead; None without a law of power."""
    return clock.unsure_clocks(found, case.cluster.clock_mhz)


def scheduled(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Schedule:
    """Return the schedule of ``plan``; ``order`` as in ``played``."""
    if case.cluster.pp > 1:
        return busiest_schedule(case, plan, order)
    chosen = order or order_of(case, plan)
    return built_once(
        case.model, case.workload, case.cluster, plan, chosen,
        fp8_any_layout=case.profile.machine.fp8_any_layout,
    )  # fmt: skip


def plays_of(case: Case, plan: SlicePlan, order: LayerOrder | None, cost: CostModel) -> Repriced:
    """Return the schedule of ``plan``, compiled for machines like that of ``cost``."""
    return repriced(scheduled(case, plan, order), cost)


def predict(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Totals:
    """Return the fast engine's totals (ns), with its periodic shortcut; see ``played``."""
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).totals
    return played(case, plan, order).totals


def iteration_ns(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return the time of ``predict``, without where a pipeline's goes."""
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).iteration_ns
    return played(case, plan, order).totals.makespan_ns


def simulate(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Timeline:
    """Return the full timeline of the engine of record; see ``played``."""
    found = played(case, plan, order)
    return play(found.schedule, found.program)
