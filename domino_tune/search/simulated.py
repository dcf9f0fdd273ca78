"""A case as the searches see it: its space of plans, each priced by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import cast

from domino_tune.search.problem import Evaluation
from domino_tune.search.space import Space, SpaceSpec, Target, enumerate_plans
from simulator.case import Case
from simulator.closed_form import ClosedForm
from simulator.issue_order import LayerOrder
from simulator.memory import peak_bytes
from simulator.plan import MAX_ROW_SLICES, SlicePlan
from simulator.predict import order_of, predict


@dataclass(kw_only=True)
class SimulatedPlans:
    """The search's view of a case: every plan's time and memory by simulation, each kept."""

    case: Case
    plans: Sequence[SlicePlan]
    orders: dict[SlicePlan, LayerOrder] = field(default_factory=dict)
    known: dict[SlicePlan, Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        closed = ClosedForm(self.case)
        self._bound_ns, self._prior_ns = cache(closed.lower_bound_ns), cache(closed.prior_ns)

    def order(self, plan: SlicePlan) -> LayerOrder:
        """The plan's explicit order."""
        if plan not in self.orders:
            self.orders[plan] = order_of(self.case, plan)
        return self.orders[plan]

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Time by the fast engine, and peak memory. Raises InfeasiblePlanError (``memory``)."""
        if plan not in self.known:
            order = self.order(plan)
            peak = peak_bytes(self.case, plan, order)
            self.case.check_memory(plan, peak)
            iteration_ns = predict(self.case, plan, order).makespan_ns
            self.known[plan] = Evaluation(iteration_ns=iteration_ns, peak_bytes=peak)
        return self.known[plan]

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Proven bound, without an engine."""
        return self._bound_ns(plan)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Closed-form estimate, without an engine."""
        return self._prior_ns(plan)


@dataclass(frozen=True, kw_only=True, eq=False)
class CasePlans:
    """A case and the plans it is searched among; a search that goes on finds all that was listed,
    ordered and bounded before."""

    case: Case
    target: str | None = None

    @cached_property
    def space(self) -> Space:
        """All plans. Raises InfeasiblePlanError where the target cannot run the workload."""
        return space_of(self.case, self.target)

    @cached_property
    def problem(self) -> SimulatedPlans:
        """What the search asks."""
        return SimulatedPlans(case=self.case, plans=self.space)


def space_of(case: Case, target: str | None) -> Space:
    """All plans of a case, with the CTA counts that its profile knows for the TP group."""
    nodes, per_node = case.cluster.tp_group
    spec = SpaceSpec(
        row_slices=tuple(range(1, MAX_ROW_SLICES + 1)),
        comm_ctas=case.profile.comm_ctas_choices(nodes, per_node),
    )
    return enumerate_plans(
        case.model, case.workload, spec=spec, target=cast("Target | None", target)
    )
