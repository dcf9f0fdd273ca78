"""Which plans measured tuning chooses from: a case's most promising, simulated beforehand.

A space has ten thousands of plans and a real run takes seconds, so all that is measured is among
the few hundred best by the closed-form estimate, every cut and order represented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from domino_tune.requests import TuneRequest
from domino_tune.search import SEARCHES, SearchOptions, Space
from domino_tune.search.correction import MeasuredPool
from domino_tune.search.features import Floats, encode
from domino_tune.search.simulated import SimulatedPlans
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict

POOL: Final = 256
EXHAUSTIVE: Final = 64
"""Plans that an exhaustive search measures without being told how many."""
SEARCHED: Final = 40
"""Plans that the simulator's own search looks at, so that its best is in the pool."""
SLOWER: Final = 1.3
"""A cut estimated this much slower than the best is left out."""
CHANGED: Final[tuple[dict[str, float], ...]] = (
    {"contention": 2.0},
    {"link_bandwidth": 0.8},
    {"link_latency": 2.0},
    {"gpu_flops": 0.8},
)
"""Ways in which a profile may be wrong, each about as much as is usual."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """``pool``: what is measured from; ``whole`` when that is every plan of the space that fits."""

    pool: MeasuredPool
    space: Space
    whole: bool


def choose_pool(
    problem: SimulatedPlans,
    space: Space,
    request: TuneRequest,
    known: Sequence[SlicePlan],
    progress: Callable[[str], None],
) -> Choice:
    """The plans that the request's search chooses from, ``known`` ones of the space among them:
    evidence may be of plans that the request's target cannot run.

    Raises InputError where ``exhaustive`` would have to measure too many, InfeasiblePlanError
    when no plan fits the memory.
    """
    total = len(space) + 1
    if request.method == "exhaustive" and total > (request.trials or EXHAUSTIVE):
        raise InputError(
            f"--search exhaustive would measure {total:,} plans, the baseline included; use "
            f"--search bayes, give fewer plans (--target), or allow them with --trials {total}."
        )
    whole = request.method == "exhaustive" or total <= POOL
    progress("choosing plans to measure")
    plans = list(space) if whole else _promising(problem, request.seed)
    measured = set(known)
    plans += [plan for plan in space if plan in measured] if measured else []
    pool = measured_pool(problem, plans, progress)
    return Choice(pool=pool, space=space, whole=whole)


def measured_pool(
    problem: SimulatedPlans,
    plans: Sequence[SlicePlan],
    progress: Callable[[str], None] = lambda message: None,
) -> MeasuredPool:
    """The baseline, then those of ``plans`` that fit the memory, each simulated.

    Raises InfeasiblePlanError when none fits.
    """
    fitting = _fitting(problem, plans)
    plans = tuple(dict.fromkeys((MEGATRON, *fitting)))
    progress(f"simulating {len(plans)} plans in {len(CHANGED) + 1} ways")
    log_prior = _log_times(problem, problem.case, plans)
    return MeasuredPool(
        plans=plans,
        points=encode(plans),
        log_prior=log_prior,
        sensitivity=_sensitivity(problem, plans, log_prior),
    )


def _promising(problem: SimulatedPlans, seed: int) -> list[SlicePlan]:
    """What the simulator's search finds, the best estimated of each cut and order, and the best
    estimated of all."""
    found = SEARCHES["bayes"](problem, SearchOptions(trials=SEARCHED, seed=seed))
    picked = [trial.plan for trial in found.trials]
    prior = {plan: problem.prior_ns(plan) for plan in problem.plans}
    ranked = sorted(prior, key=prior.__getitem__)
    of_cut: dict[tuple[object, ...], SlicePlan] = {}
    for plan in ranked:
        if prior[plan] <= SLOWER * prior[ranked[0]]:
            of_cut.setdefault((*plan.slices[:3], plan.order, plan.merge_wgrad), plan)
    picked += list(of_cut.values())[: POOL // 2]
    return list(dict.fromkeys([*picked, *ranked]))[:POOL]


def _fitting(problem: SimulatedPlans, plans: Sequence[SlicePlan]) -> list[SlicePlan]:
    fits, reason = [], None
    for plan in plans:
        try:
            problem.evaluate(plan)
            fits.append(plan)
        except InfeasiblePlanError as error:
            reason = reason or error
    if reason is not None and not fits:
        raise reason
    return fits


def _log_times(problem: SimulatedPlans, case: Case, plans: Sequence[SlicePlan]) -> Floats:
    times = [predict(case, plan, problem.order(plan)).makespan_ns for plan in plans]
    return np.log(np.array(times, dtype=np.float64))


def _sensitivity(problem: SimulatedPlans, plans: Sequence[SlicePlan], base: Floats) -> Floats:
    """[n, k]: how log(plan / baseline) changes under each of CHANGED, orders kept."""
    columns = []
    for change in CHANGED:
        changed = replace(problem.case, changes=replace(problem.case.changes, **change))
        column = _log_times(problem, changed, plans) - base
        columns.append(column - column[0])
    return np.stack(columns, axis=1)
