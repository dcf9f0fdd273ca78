"""Proven optima of the search cases, greedy plans and fixed orders apart; found once, shared."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from benchmarks.bench.cases import SearchCase
from benchmarks.bench.pool import PlanPool
from domino_tune.search import SEARCHES, SearchOptions, SpaceSpec, Trial, enumerate_plans
from simulator.plan import Order

FIXED: Final[tuple[Order, ...]] = ("inter", "intra", "paper")


class Optima(NamedTuple):
    """The fastest greedy plan and the fastest of the other three orders, both proven."""

    greedy: Trial
    fixed: Trial
    plans: int

    @property
    def best_ns(self) -> int:
        """The proven optimum of the whole space."""
        return min(self.greedy.iteration_ns, self.fixed.iteration_ns)


@cache
def optima(search_case: SearchCase) -> Optima:
    """Both optima over all that ``tune`` searches: cuts and weight gradients."""
    greedy, greedy_plans = _proven(search_case, ("greedy",))
    fixed, fixed_plans = _proven(search_case, FIXED)
    return Optima(greedy, fixed, greedy_plans + fixed_plans)


def _proven(search_case: SearchCase, orders: tuple[Order, ...]) -> tuple[Trial, int]:
    case = search_case.case()
    space = enumerate_plans(case.model, case.workload, spec=SpaceSpec(orders=orders))
    result = SEARCHES["exhaustive"](PlanPool(case, space), SearchOptions())
    assert result.optimality == "proven"
    return min(result.trials, key=lambda trial: (trial.iteration_ns, trial.index)), len(space)
