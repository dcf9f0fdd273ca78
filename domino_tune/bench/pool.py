"""PlanPool: the plans of one case as a search sees them, with memory checked."""

from __future__ import annotations

from domino_tune.search import Evaluation, Space
from simulator.closed_form import ClosedForm
from simulator.errors import InfeasiblePlanError
from simulator.memory import peak_bytes
from simulator.plan import SlicePlan
from simulator.predict import Case, order_of, predict


class PlanPool:
    """A ``Problem`` over ``plans``; a plan that needs more than ``capacity_bytes`` cannot run."""

    def __init__(self, case: Case, plans: Space) -> None:
        self.case = case
        self.plans = plans
        self.capacity_bytes = round(case.cost.profile.machine.gpu_memory_gib * (1 << 30))
        self.closed_form = ClosedForm(case)

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Proven bound, no engine involved."""
        return self.closed_form.lower_bound_ns(plan)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Estimate, no engine involved."""
        return self.closed_form.prior_ns(plan)

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Time by the fast engine, memory by value lifetimes."""
        order = order_of(self.case, plan)
        peak = peak_bytes(self.case, plan, order)
        if peak > self.capacity_bytes:
            raise InfeasiblePlanError(
                f"{plan.label} needs {peak} bytes, a GPU has {self.capacity_bytes}.",
                reason="memory",
            )
        return Evaluation(iteration_ns=predict(self.case, plan, order).makespan_ns, peak_bytes=peak)
