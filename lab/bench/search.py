"""Evaluations that a search needs to come within 1 % of the fastest plan under a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.search import SEARCHES, Evaluation, SearchOptions, Trial, enumerate_plans
from domino_tune.search.simulated import SimulatedPlans
from lab.bench.cases import SEARCH_CASES, SearchCase
from lab.verdict import Check, at_most, check_table, reported, verdict
from simulator.plan import SlicePlan
from simulator.units import MS_PER_NS

BUDGET: Final = 40
MEDIAN: Final = 12
WITHIN: Final = 1.01
LEAST_CASES: Final = 20
SEEDS: Final = (0, 1)
"""Of random searches; a Bayesian search draws nothing."""


class Found(NamedTuple):
    """A case, the number of its plans, the fastest, and the evaluations that searches needed
    (BUDGET + 1: they did not come near). ``ends``: how far random ones ended from it, at most."""

    case: SearchCase
    plans: int
    best: Trial
    bayes: int
    random: tuple[int, ...]
    ends: float


class _FoundError(Exception):
    """The goal is reached; the rest of the budget is not needed."""


class _Watched(SimulatedPlans):
    """Counts evaluations, stores the least time, and ends the search at ``goal_ns``."""

    goal_ns = 0.0
    evaluations = 0
    fastest_ns = 0

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Evaluate ``plan``. Raise _FoundError at the goal."""
        self.evaluations += 1
        found = super().evaluate(plan)
        self.fastest_ns = min(self.fastest_ns or found.iteration_ns, found.iteration_ns)
        if found.iteration_ns <= self.goal_ns:
            raise _FoundError
        return found


def search(cases: Sequence[SearchCase] = SEARCH_CASES) -> list[Table]:
    """Compare ``bayes`` with ``random`` on every case, with the same budget."""
    found = [_found(case) for case in cases]
    return [_summary(found), _cases(found)]


def _found(search_case: SearchCase) -> Found:
    plans = _plans(search_case)
    result = SEARCHES["exhaustive"](plans, SearchOptions())
    assert result.optimality == "proven"
    best = min(result.trials, key=lambda trial: (trial.iteration_ns, trial.index))
    bayes, _ = _needs(search_case, "bayes", best.iteration_ns)
    draws = [_needs(search_case, "random", best.iteration_ns, seed) for seed in SEEDS]
    random, ends = zip(*draws, strict=True)
    return Found(search_case, len(plans.plans), best, bayes, random, max(ends))


def _plans(search_case: SearchCase) -> _Watched:
    case = search_case.case()
    return _Watched(case=case, plans=enumerate_plans(case.model, case.workload))


def _needs(search_case: SearchCase, name: str, best_ns: int, seed: int = 0) -> tuple[int, float]:
    """Return the evaluations until the goal, and how far the search ended from the optimum."""
    plans = _plans(search_case)
    plans.goal_ns = best_ns * WITHIN
    try:
        SEARCHES[name](plans, SearchOptions(trials=BUDGET, seed=seed))
    except _FoundError:
        return plans.evaluations, plans.fastest_ns / best_ns - 1
    return BUDGET + 1, plans.fastest_ns / best_ns - 1


def _count(evaluations: int) -> str:
    return f">{BUDGET}" if evaluations > BUDGET else str(evaluations)


def _summary(found: Sequence[Found]) -> Table:
    bayes = [one.bayes for one in found]
    near = [count <= BUDGET for one in found for count in one.random]
    cuts = Counter(one.best.plan.cut for one in found)
    checks = [
        Check(what="cases", target=f"≥ {LEAST_CASES}", measured=str(len(found)),
              ok=len(found) >= LEAST_CASES),
        Check(what="bayes: most evaluations", target=f"≤ {BUDGET}", measured=_count(max(bayes)),
              ok=max(bayes) <= BUDGET),
        at_most("bayes: median", MEDIAN, median(bayes), "evaluations", 1),
        reported(f"random: runs within 1% after {BUDGET}", f"{sum(near)} of {len(near)}"),
        reported("cuts of the optima", ", ".join(f"{n} × {cut}" for cut, n in cuts.most_common())),
    ]  # fmt: skip
    return check_table(
        "Evaluations to come within 1% of the fastest plan under the profile", checks
    )


def _cases(found: Sequence[Found]) -> Table:
    return Table(
        title="Search, case by case",
        columns=(
            "case", ">plans", ">optimum ms", ">bayes", ">random", ">random ends at", "verdict",
        ),
        rows=[
            (
                one.case.label, f"{one.plans:,}", f"{one.best.iteration_ns * MS_PER_NS:.1f}",
                _count(one.bayes), " ".join(map(_count, one.random)), f"{one.ends:+.1%}",
                verdict(one.bayes <= BUDGET),
            )
            for one in found
        ],
        notes=["The whole space that `tune` searches. bayes: a Gaussian process with the "
               "closed-form estimate as its mean. random: one number per seed. The optimum is the "
               "fastest of all plans under the profile: bounds rule out the others."],
    )  # fmt: skip
