"""Predictions of one case: everything but the plan is fixed, plans vary."""

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
    """The explicit order of a plan: its strategy's lines, or the greedy planner's."""
    if plan.strategy == "domino" and plan.order == "greedy":
        return plan_order(case.shapes(plan), case.cost)
    return fixed_order(plan)


def programmed(
    case: Case, plan: SlicePlan, order: LayerOrder | None = None
) -> tuple[Schedule, Program]:
    """The schedule of ``plan`` and what the engines play of it.

    ``order`` replays a stored order; without it the plan's own is taken (or planned).
    """
    schedule = build_schedule(
        case.model, case.workload, case.cluster, plan, order or order_of(case, plan)
    )
    return schedule, compile_program(schedule, case.cost)


def predict(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Totals:
    """Iteration time and its parts by the fast engine, periodic shortcut on; see ``programmed``."""
    return totals(programmed(case, plan, order)[1])


def simulate(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Timeline:
    """The full timeline by the engine of record; see ``programmed``."""
    return play(*programmed(case, plan, order))
