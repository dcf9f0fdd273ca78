"""Evaluations that a search needs to come within 1 % of the fastest plan under a profile."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.search import (
    SEARCHES,
    Evaluation,
    SearchOptions,
    Space,
    SpaceSpec,
    enumerate_plans,
)
from domino_tune.search.simulated import SimulatedPlans
from lab.bench.cases import SEARCH_CASES, SearchCase
from lab.bench.optima import optima
from lab.verdict import Check, check_table, reported, verdict
from simulator.plan import SlicePlan
from simulator.units import MS_PER_NS

BUDGET: Final = 40
MEDIAN: Final = 12
WITHIN: Final = 1.01
LEAST_CASES: Final = 20
SEEDS: Final = (0, 1)
"""Of random searches; a Bayesian search draws nothing."""


class _FoundError(Exception):
    """The goal is reached; the rest of the budget is not needed."""


class _Watched(SimulatedPlans):
    """Counts evaluations, stores the least time, and ends the search at ``goal_ns``."""

    def __init__(self, search_case: SearchCase, plans: Space, goal_ns: float) -> None:
        super().__init__(case=search_case.case(), plans=plans)
        self.goal_ns = goal_ns
        self.evaluations = 0
        self.fastest_ns = 0

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Evaluate ``plan``. Raise _FoundError at the goal."""
        self.evaluations += 1
        found = super().evaluate(plan)
        self.fastest_ns = min(self.fastest_ns or found.iteration_ns, found.iteration_ns)
        if found.iteration_ns <= self.goal_ns:
            raise _FoundError
        return found


class _Blind(_Watched):
    """The same without prior knowledge: one estimate for all plans, no bounds."""

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return 0: nothing is ruled out."""
        return 0

    def quick_bound_ns(self, plan: SlicePlan) -> int:
        """Return 0, too."""
        return 0

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return the same for every plan."""
        return self.goal_ns


def search(cases: tuple[SearchCase, ...] = SEARCH_CASES) -> list[Table]:
    """Compare ``bayes`` with ``random`` on every case, with the same budget."""
    rows, bayes, blind, random = [], [], [], []
    for search_case in cases:
        best_ns = optima(search_case).best_ns
        bayes.append(_needs(search_case, "bayes", best_ns)[0])
        blind.append(_needs_blind(search_case, best_ns))
        draws = [_needs(search_case, "random", best_ns, seed) for seed in SEEDS]
        random += [count for count, _ in draws]
        rows.append((
            search_case.label, f"{optima(search_case).plans:,}", f"{best_ns * MS_PER_NS:.1f}",
            _count(bayes[-1]), _count(blind[-1]), " ".join(_count(count) for count, _ in draws),
            f"{100 * max(off for _, off in draws):+.1f}%", verdict(bayes[-1] <= BUDGET),
        ))  # fmt: skip
    cuts = Counter(_best_cut(search_case) for search_case in cases)
    return [_summary(bayes, blind, random, cuts), _cases(rows)]


def _best_cut(search_case: SearchCase) -> str:
    found = optima(search_case)
    return min(found.greedy, found.fixed, key=lambda trial: trial.iteration_ns).plan.cut


def _needs(search_case: SearchCase, name: str, best_ns: int, seed: int = 0) -> tuple[int, float]:
    """Return what ``_evaluations`` does, and the least time relative to the optimum, minus 1."""
    case = search_case.case()
    pool = _Watched(search_case, enumerate_plans(case.model, case.workload), best_ns * WITHIN)
    return _evaluations(pool, name, seed), pool.fastest_ns / best_ns - 1


def _needs_blind(search_case: SearchCase, best_ns: int) -> int:
    """Return evaluations without prior knowledge, in a space with tied dgrad pieces."""
    case = search_case.case()
    plans = enumerate_plans(case.model, case.workload, spec=SpaceSpec(dgrad_slices=()))
    return _evaluations(_Blind(search_case, plans, best_ns * WITHIN), "bayes")


def _evaluations(pool: _Watched, name: str, seed: int = 0) -> int:
    """Return the evaluations until the goal, or BUDGET + 1 if the search does not reach it."""
    try:
        SEARCHES[name](pool, SearchOptions(trials=BUDGET, seed=seed))
    except _FoundError:
        return pool.evaluations
    return BUDGET + 1


def _count(evaluations: int) -> str:
    return f">{BUDGET}" if evaluations > BUDGET else str(evaluations)


def _summary(bayes: list[int], blind: list[int], random: list[int], cuts: Counter[str]) -> Table:
    middle = statistics.median(bayes)
    checks = [
        Check(what="cases", target=f"≥ {LEAST_CASES}", measured=str(len(bayes)),
              ok=len(bayes) >= LEAST_CASES),
        Check(what="bayes: most evaluations", target=f"≤ {BUDGET}", measured=_count(max(bayes)),
              ok=max(bayes) <= BUDGET),
        Check(what="bayes: median", target=f"≤ {MEDIAN}", measured=f"{middle:g}",
              ok=middle <= MEDIAN),
        reported(f"random: runs within 1% after {BUDGET}",
             f"{sum(count <= BUDGET for count in random)} of {len(random)}"),
        reported("bayes without the estimate and without bounds: median, most",
             f"{statistics.median(blind):g}, {_count(max(blind))}"),
        reported("cuts of the optima", ", ".join(f"{n} × {cut}" for cut, n in cuts.most_common())),
    ]  # fmt: skip
    return check_table(
        "Evaluations to come within 1% of the fastest plan under the profile", checks
    )


def _cases(rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(
        title="Search, case by case",
        columns=("case", ">plans", ">optimum ms", ">bayes", ">blind", ">random", ">random ends at",
                 "verdict"),
        rows=rows,
        notes=["The whole space that `tune` searches. bayes: a Gaussian process with the "
               "closed-form estimate as its mean. blind: the process alone, over plans with tied "
               "dgrad pieces. random: one number per seed. The optimum is the fastest of all plans "
               "under the profile: bounds rule out the others."],
    )  # fmt: skip
