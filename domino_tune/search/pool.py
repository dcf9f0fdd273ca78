"""Choose the pool of measured tuning: the most promising plans of a case, simulated.

A space has tens of thousands of plans and a real run takes seconds. So the pool holds a few hundred
plans with the best closed-form estimates, of all cuts and orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import MeasureRequest
from domino_tune.search import SEARCHES, SearchOptions, Space
from domino_tune.search.features import Floats, Pool, encode
from domino_tune.search.simulated import SimulatedPlans
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict

POOL: Final = 256
EXHAUSTIVE: Final = 64
"""Most plans that an exhaustive search measures without ``--trials``."""
SEARCHED: Final = 40
"""Plans that the search over the simulator evaluates, so that its best is in the pool."""
SLOWER: Final = 1.3
"""Factor: a cut whose estimate is this much slower than the best is left out."""
CHANGED: Final[tuple[dict[str, float], ...]] = (
    {"contention": 2.0},
    {"link_bandwidth": 0.8},
    {"link_latency": 2.0},
    {"gpu_flops": 0.8},
)
"""Errors that a profile may have, each of usual size."""


@dataclass(frozen=True, kw_only=True)
class ChosenPool:
    """``whole``: the pool is every plan of the space that fits the memory."""

    pool: Pool
    space: Space
    whole: bool


def choose_pool(
    problem: SimulatedPlans,
    space: Space,
    request: MeasureRequest,
    measured: Sequence[SlicePlan],
    progress: Progress,
) -> ChosenPool:
    """Return the pool of the request, with those of the ``measured`` plans that are in the space.

    Evidence may hold plans that the target of the request cannot run. Raise InputError where
    ``exhaustive`` would measure too many plans, InfeasiblePlanError when no plan fits the memory.
    """
    total = len(space) + 1
    if request.search == "exhaustive" and total > (request.trials or EXHAUSTIVE):
        raise InputError(
            f"--search exhaustive would measure {total:,} plans, the baseline included; use "
            f"--search bayes, give fewer plans (--target), or allow them with --trials {total}."
        )
    whole = request.search == "exhaustive" or total <= POOL
    progress("choosing plans to measure")
    plans = list(space) if whole else _promising(problem)
    evidence = set(measured)
    plans += [plan for plan in space if plan in evidence] if evidence else []
    pool = measured_pool(problem, plans, progress)
    return ChosenPool(pool=pool, space=space, whole=whole)


def baseline_of(case: Case) -> SlicePlan:
    """Return the unsliced plan that others are measured beside."""
    return replace(MEGATRON, sequence_parallel=case.shards_tokens)


def measured_pool(
    problem: SimulatedPlans,
    plans: Sequence[SlicePlan],
    progress: Progress = no_progress,
) -> Pool:
    """Return the pool of the baseline, then those of ``plans`` that fit the memory.

    Raise InfeasiblePlanError when none fits.
    """
    fitting = _fitting(problem, plans)
    plans = tuple(dict.fromkeys((baseline_of(problem.case), *fitting)))
    progress(f"simulating {len(plans)} plans in {len(CHANGED) + 1} ways")
    log_prior = _log_times(problem, problem.case, plans)
    return Pool(
        plans=plans,
        points=encode(plans),
        log_prior=log_prior,
        sensitivity=_sensitivity(problem, plans, log_prior),
    )


def _promising(problem: SimulatedPlans) -> list[SlicePlan]:
    """Return the plans that a search evaluates, then the best estimates of each cut and order,
    then the best estimates of all."""
    found = SEARCHES["bayes"](problem, SearchOptions(trials=SEARCHED))
    picked = [trial.plan for trial in found.trials]
    prior = {plan: problem.prior_ns(plan) for plan in problem.plans}
    ranked = sorted(prior, key=prior.__getitem__)
    of_cut: dict[tuple[object, ...], SlicePlan] = {}
    for plan in ranked:
        if prior[plan] <= SLOWER * prior[ranked[0]]:
            cut = (*plan.slices[:3], plan.slice_dim, plan.order, plan.merge_wgrad)
            of_cut.setdefault(cut, plan)
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
    """Return [n, k] changes of log(plan / baseline) under each of CHANGED; orders stay the same."""
    columns = []
    for change in CHANGED:
        changed = replace(problem.case, changes=replace(problem.case.changes, **change))
        column = _log_times(problem, changed, plans) - base
        columns.append(column - column[0])
    return np.stack(columns, axis=1)
