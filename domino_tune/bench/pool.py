"""PlanPool: the plans of one case as a search sees them, with memory checked."""

from __future__ import annotations

from domino_tune.case import Setup
from domino_tune.search import Space
from domino_tune.tuning import SimulatedPlans
from simulator.predict import Case


class PlanPool(SimulatedPlans):
    """What ``tune`` searches, for a case that benchmarks made; nothing is looked up yet."""

    def __init__(self, case: Case, plans: Space) -> None:
        setup = Setup(
            model=case.model,
            workload=case.workload,
            cluster=case.cluster,
            profile=case.cost.profile,
            changes=case.cost.changes,
        )
        super().__init__(setup=setup, plans=plans)
