"""PlanPool: the plans of a case, without any cached time."""

from __future__ import annotations

from dataclasses import replace

from domino_tune.search import Space
from domino_tune.search.simulated import SimulatedPlans
from simulator.case import Case


class PlanPool(SimulatedPlans):
    """The plans of a copy of ``case``, which has none of its cached look-ups."""

    def __init__(self, case: Case, plans: Space) -> None:
        super().__init__(case=replace(case), plans=plans)
