"""Bayesian search: evaluate the plan of a pool that promises the largest expected improvement.

Expected improvement is computed for every plan that was not evaluated, so no plan is evaluated
twice and no constraint has to be learnt. scikit-optimize's ``gp_minimize`` rounds a continuous
optimum instead, often to an evaluated plan, and then draws one at random.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np

from domino_tune.search.features import Indices, Observations, Pool, encode
from domino_tune.search.ledger import Ledger
from domino_tune.search.problem import DEFAULT_TRIALS, Problem, SearchOptions, SearchResult

FIRST_CUTS: Final = 4
"""Plans, each of another cut, that are evaluated before the process is fitted."""
ERROR: Final = 1e-3
"""Standard error of a simulated log time. It is exact, but a fit to exact times is unstable."""


def search_bayes(problem: Problem, options: SearchOptions) -> SearchResult:
    """Evaluate what ``rank`` puts first until the budget is spent or bounds rule out the rest.

    Nothing is drawn, so ``options.seed`` has no effect. Raise InfeasiblePlanError when none of the
    plans tried can run.
    """
    ledger = Ledger(problem, options, trials=options.trials or DEFAULT_TRIALS)
    pool, record = _pool_of(problem), ledger.record
    bound_ns = functools.cache(lambda index: problem.lower_bound_ns(pool.plans[index]))
    while not ledger.spent and len(record.history) + len(record.pruned) < len(pool.plans):
        for index in rank(pool, record.times_ns, record.pruned):
            if ledger.ruled_out(bound_ns(index)):
                record.pruned.add(index)
                continue
            ledger.evaluate(index)
            break
    return ledger.result(pruned=len(record.pruned))


def _pool_of(problem: Problem) -> Pool:
    """Return all plans with closed-form estimates, which may all be wrong by one factor."""
    plans = tuple(problem.plans)
    prior_ns = np.array([problem.prior_ns(plan) for plan in plans], dtype=np.float64)
    assert np.all(np.isfinite(prior_ns) & (prior_ns > 0))
    return Pool(
        plans=plans, points=encode(plans), log_prior=np.log(prior_ns),
        sensitivity=np.ones((len(plans), 1)),
    )  # fmt: skip


def rank(pool: Pool, history: Mapping[int, float | None], pruned: Set[int]) -> list[int]:
    """Return the plans in neither ``history`` nor ``pruned``, the one to evaluate next first.

    ``history``: ns by index, None where the plan cannot run; it counts as the slowest plan.
    """
    candidates = np.setdiff1d(np.arange(len(pool.plans)), [*history, *pruned])
    times_ns = [time_ns for time_ns in history.values() if time_ns is not None]
    if len(times_ns) < FIRST_CUTS:
        return _by_prior(pool, history, candidates)
    observations = {
        index: (float(np.log(time_ns or max(times_ns))), ERROR)
        for index, time_ns in history.items()
    }
    return [index for index, _ in by_improvement(pool, observations, candidates)]


def _by_prior(pool: Pool, history: Mapping[int, float | None], candidates: Indices) -> list[int]:
    """Return candidates by rising prior, those of a cut that was not evaluated first."""
    cuts = {pool.plans[index].slices for index in history}
    evaluated = np.array([pool.plans[index].slices in cuts for index in candidates])
    return list(candidates[np.lexsort((pool.log_prior[candidates], evaluated))].tolist())


def by_improvement(
    pool: Pool, observations: Observations, candidates: Sequence[int] | Indices
) -> list[tuple[int, float]]:
    """Return each candidate with its expected improvement of log ns over the observed plans.

    The largest improvement is first; among equal ones, the least expected time.
    """
    from skopt.acquisition import gaussian_ei

    from domino_tune.search.gaussian_process import posterior_of

    posterior = posterior_of(pool, observations)
    indices = np.asarray(candidates, dtype=np.intp)
    least = posterior.mean[list(observations)].min()
    gains = gaussian_ei(indices, posterior, y_opt=least, xi=0.0)
    order = np.lexsort((indices, posterior.mean[indices], -gains))
    return list(zip(indices[order].tolist(), gains[order].tolist(), strict=True))
