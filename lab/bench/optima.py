"""The search cases' fastest plans, greedy and of fixed orders, computed once."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from domino_tune.search import SEARCHES, SearchOptions, SpaceSpec, Trial, enumerate_plans
from domino_tune.search.simulated import SimulatedPlans
from lab.bench.cases import SearchCase
from simulator.plan import Order

FIXED: Final[tuple[Order, ...]] = ("inter", "intra", "paper")


class Optima(NamedTuple):
    """The fastest greedy plan and the fastest of the other three orders, under the profile.

    ``plans``: size of the whole space.
    """

    greedy: Trial
    fixed: Trial
    plans: int

    @property
    def best_ns(self) -> int:
        """Return the time of the fastest plan of the whole space, in ns."""
        return min(self.greedy.iteration_ns, self.fixed.iteration_ns)


@cache
def optima(search_case: SearchCase) -> Optima:
    """Return both optima of the space that ``tune`` searches."""
    greedy, greedy_plans = _proven(search_case, ("greedy",))
    fixed, fixed_plans = _proven(search_case, FIXED)
    return Optima(greedy, fixed, greedy_plans + fixed_plans)


def _proven(search_case: SearchCase, orders: tuple[Order, ...]) -> tuple[Trial, int]:
    case = search_case.case()
    space = enumerate_plans(case.model, case.workload, spec=SpaceSpec(orders=orders))
    result = SEARCHES["exhaustive"](SimulatedPlans(case=case, plans=space), SearchOptions())
    assert result.optimality == "proven"
    return min(result.trials, key=lambda trial: (trial.iteration_ns, trial.index)), len(space)
