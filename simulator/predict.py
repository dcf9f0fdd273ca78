"""Predictions for the plans of one case; everything except the plan is fixed."""

from __future__ import annotations

from simulator.build import build_schedule
from simulator.case import Case
from simulator.engine import play
from simulator.greedy import plan_order
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.program import Program, compile_program
from simulator.recurrence import Totals, totals
from simulator.schedule import Schedule
from simulator.schedules import fixed_order
from simulator.timeline import Timeline


def order_of(case: Case, plan: SlicePlan) -> LayerOrder:
    """Return the explicit order of a plan: the fixed one of its strategy, or the greedy one."""
    if plan.strategy == "domino" and plan.order == "greedy":
        return plan_order(case.shapes(plan), case.cost)
    return fixed_order(plan, case.workload.recompute)


def programmed(
    case: Case, plan: SlicePlan, order: LayerOrder | None = None
) -> tuple[Schedule, Program]:
    """Return the schedule of ``plan`` and the program that the engines play.

    ``order`` replays a stored order; without it the plan's own order is taken or planned.
    """
    schedule = build_schedule(
        case.model, case.workload, case.cluster, plan, order or order_of(case, plan)
    )
    return schedule, compile_program(schedule, case.cost)


def predict(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Totals:
    """Return the fast engine's totals (ns), with its periodic shortcut; see ``programmed``."""
    return totals(programmed(case, plan, order)[1])


def simulate(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Timeline:
    """Return the full timeline of the engine of record; see ``programmed``."""
    return play(*programmed(case, plan, order))
