"""PlanPool: the plans of one case as a search sees them, with memory checked."""

from __future__ import annotations

from domino_tune.search import Space
from domino_tune.search.simulated import SimulatedPlans
from simulator.case import Case


class PlanPool(SimulatedPlans):
    """What ``tune`` searches, for a case that benchmarks made; nothing is looked up yet."""

    def __init__(self, case: Case, plans: Space) -> None:
        case = Case(
            model=case.model,
            workload=case.workload,
            cluster=case.cluster,
            profile=case.cost.profile,
            changes=case.cost.changes,
        )
        super().__init__(case=case, plans=plans)
