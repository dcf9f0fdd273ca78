"""How many evaluations a search needs to come within 1 % of the proven optimum."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from benchmarks.bench.cases import SEARCH_CASES, SearchCase
from benchmarks.bench.optima import optima
from benchmarks.bench.pool import PlanPool
from benchmarks.bench.verdict import Check, check_table, told, verdict
from domino_tune.base.tables import Table
from domino_tune.search import (
    SEARCHES,
    Evaluation,
    SearchOptions,
    Space,
    SpaceSpec,
    enumerate_plans,
)
from simulator.plan import SlicePlan

BUDGET: Final = 40
MEDIAN: Final = 12
WITHIN: Final = 1.01
LEAST_CASES: Final = 20
SEEDS: Final = (0, 1)


class _FoundError(Exception):
    """The goal is reached; the rest of the budget would tell nothing more."""


class _Watched(PlanPool):
    """Counts evaluations, remembers the fastest, and stops the search at ``goal_ns``."""

    def __init__(self, search_case: SearchCase, plans: Space, goal_ns: float) -> None:
        super().__init__(search_case.case(), plans)
        self.goal_ns = goal_ns
        self.evaluations = 0
        self.fastest_ns = 0

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """As the pool does, watched."""
        self.evaluations += 1
        found = super().evaluate(plan)
        self.fastest_ns = min(self.fastest_ns or found.iteration_ns, found.iteration_ns)
        if found.iteration_ns <= self.goal_ns:
            raise _FoundError
        return found


class _Blind(_Watched):
    """The same with nothing known beforehand: one estimate for all plans, no bounds."""

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """None: nothing is ruled out."""
        return 0

    def prior_ns(self, plan: SlicePlan) -> float:
        """The same for every plan."""
        return self.goal_ns


def search(cases: tuple[SearchCase, ...] = SEARCH_CASES) -> list[Table]:
    """``bayes`` beside ``random`` on every case, the same budget."""
    rows, needed, lucky, blind = [], [], [], []
    for search_case in cases:
        best_ns = optima(search_case).best_ns
        bayes = [_needs(search_case, "bayes", best_ns, seed) for seed in SEEDS]
        random = [_needs(search_case, "random", best_ns, seed) for seed in SEEDS]
        worst = max(count for count, _ in bayes)
        needed += [count for count, _ in bayes]
        lucky += [count for count, _ in random]
        blind.append(_needs_blind(search_case, best_ns))
        rows.append((
            search_case.label, f"{optima(search_case).plans:,}", f"{best_ns * 1e-6:.1f}",
            " ".join(_count(count) for count, _ in bayes), _count(blind[-1]),
            " ".join(_count(count) for count, _ in random),
            f"{100 * max(off for _, off in random):+.1f}%", verdict(worst <= BUDGET),
        ))  # fmt: skip
    cuts = Counter(_best_cut(search_case) for search_case in cases)
    return [_summary(len(cases), needed, lucky, blind, cuts), _cases(rows)]


def _best_cut(search_case: SearchCase) -> str:
    found = optima(search_case)
    return min(found.greedy, found.fixed, key=lambda trial: trial.iteration_ns).plan.cut


def _needs(search_case: SearchCase, name: str, best_ns: int, seed: int) -> tuple[int, float]:
    """(evaluations to come within 1 %, budget + 1 if it does not; how far off it ended)."""
    case = search_case.case()
    pool = _Watched(search_case, enumerate_plans(case.model, case.workload), best_ns * WITHIN)
    return _evaluations(pool, name, seed), pool.fastest_ns / best_ns - 1


def _needs_blind(search_case: SearchCase, best_ns: int) -> int:
    """Evaluations of the Gaussian process alone; dgrad pieces tied, so that asking costs less."""
    case = search_case.case()
    plans = enumerate_plans(case.model, case.workload, spec=SpaceSpec(dgrad_slices=()))
    return _evaluations(_Blind(search_case, plans, best_ns * WITHIN), "bayes", SEEDS[0])


def _evaluations(pool: _Watched, name: str, seed: int) -> int:
    """How many it takes to reach the pool's goal; budget + 1 if it does not."""
    try:
        SEARCHES[name](pool, SearchOptions(trials=BUDGET, seed=seed))
    except _FoundError:
        return pool.evaluations
    return BUDGET + 1


def _count(evaluations: int) -> str:
    return f">{BUDGET}" if evaluations > BUDGET else str(evaluations)


def _summary(
    cases: int, needed: list[int], lucky: list[int], blind: list[int], cuts: Counter[str]
) -> Table:
    middle = statistics.median(needed)
    checks = [
        Check(what="cases", target=f"≥ {LEAST_CASES}", measured=str(cases),
              ok=cases >= LEAST_CASES),
        Check(what="bayes: most evaluations", target=f"≤ {BUDGET}", measured=_count(max(needed)),
              ok=max(needed) <= BUDGET),
        Check(what="bayes: median", target=f"≤ {MEDIAN}", measured=f"{middle:g}",
              ok=middle <= MEDIAN),
        told(f"random: runs within 1% after {BUDGET}",
             f"{sum(count <= BUDGET for count in lucky)} of {len(lucky)}"),
        told("bayes without the estimate and without bounds: median, most",
             f"{statistics.median(blind):g}, {_count(max(blind))}"),
        told("cuts of the optima", ", ".join(f"{n} × {cut}" for cut, n in cuts.most_common())),
    ]  # fmt: skip
    return check_table(
        f"Evaluations to come within 1% of the proven optimum, {len(SEEDS)} seeds", checks
    )


def _cases(rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(
        title="Search, case by case",
        columns=("case", ">plans", ">optimum ms", ">bayes", ">blind", ">random", ">random ends at",
                 "verdict"),
        rows=rows,
        notes=["The whole space that `tune` searches; bayes asks a Gaussian process on top of the "
               "closed-form estimate, one number a seed; blind: the process "
               "alone, over plans with tied dgrad pieces. The optimum is proven by bounds."],
    )  # fmt: skip
