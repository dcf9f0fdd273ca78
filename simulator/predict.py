"""Predictions of one case: everything but the plan is fixed, plans vary."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.engine import play
from simulator.greedy import plan_order
from simulator.lines import LayerOrder
from simulator.plan import SlicePlan, check_plan_fits
from simulator.program import Program, compile_program
from simulator.recurrence import Totals, totals
from simulator.schedule import Schedule
from simulator.schedules import fixed_order
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload, check_shardable
from simulator.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, a workload, a cluster and what its ops cost.

    Raises InputError where the model does not shard over ``cluster.tp`` ranks.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    cost: CostModel

    def __post_init__(self) -> None:
        check_shardable(self.model, self.workload, self.cluster)

    def shapes(self, plan: SlicePlan) -> Shapes:
        """One rank's shapes under ``plan``. Raises InfeasiblePlanError where it does not fit."""
        check_plan_fits(plan, self.model, self.workload)
        return Shapes(model=self.model, workload=self.workload, cluster=self.cluster, plan=plan)


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
