"""The issue order of a plan: the fixed one of its strategy, or the greedy planner's."""

from __future__ import annotations

from simulator.case import Case
from simulator.greedy import plan_order
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.schedules import fixed_order


def order_of(case: Case, plan: SlicePlan) -> LayerOrder:
    """Return the explicit order of a plan: the fixed one of its strategy, or the greedy one."""
    if plan.strategy == "domino" and plan.order == "greedy":
        return plan_order(case.shapes(plan), case.cost)
    return fixed_order(plan, case.workload.recompute, case.workload.modules)
