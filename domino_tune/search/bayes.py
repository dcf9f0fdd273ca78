"""Bayesian search: a Gaussian process over the unseen plans, on top of a closed-form prior.

The process models log(time / prior), so it learns only where the prior is wrong. Expected
improvement is scored on plans that exist and were not evaluated, so nothing is asked twice and
no constraint has to be learnt; ``gp_minimize`` rounds a continuous optimum to a known point
instead, and then asks at random.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from domino_tune.search.features import Floats, encode
from domino_tune.search.ledger import Ledger
from domino_tune.search.problem import DEFAULT_TRIALS, Problem, SearchOptions, SearchResult
from simulator.plan import SlicePlan

Indices = npt.NDArray[np.intp]
FIRST_CUTS: Final = 4
SHORTLIST: Final = 4096
NOISE_FLOOR: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The plans as the search sees them: [n, d] points and [n] log prior times (log ns)."""

    plans: tuple[SlicePlan, ...]
    points: Floats
    log_prior: Floats


def search_bayes(problem: Problem, options: SearchOptions) -> SearchResult:
    """Evaluate what ``rank`` puts first, until the budget is spent or bounds rule out the rest.

    Raises InfeasiblePlanError when none of the plans tried can run.
    """
    ledger = Ledger(problem, options, trials=options.trials or DEFAULT_TRIALS)
    pool, record = pool_of(problem), ledger.record
    bound_ns = functools.cache(lambda index: problem.lower_bound_ns(pool.plans[index]))
    while not ledger.spent and len(record.history) + len(record.pruned) < len(pool.plans):
        for index in rank(pool, record.times_ns, record.pruned, options.seed):
            if ledger.ruled_out(bound_ns(index)):
                record.pruned.add(index)
                continue
            ledger.evaluate(index)
            break
    return ledger.result(pruned=len(record.pruned))


def pool_of(problem: Problem) -> Pool:
    """Look at every plan of the problem once, without evaluating one."""
    plans = tuple(problem.plans)
    prior_ns = np.array([problem.prior_ns(plan) for plan in plans], dtype=np.float64)
    assert np.all(np.isfinite(prior_ns) & (prior_ns > 0))
    return Pool(plans=plans, points=encode(plans), log_prior=np.log(prior_ns))


def rank(pool: Pool, history: Mapping[int, float | None], pruned: Set[int], seed: int) -> list[int]:
    """Return open plans, the one to evaluate next first: a pure function of its arguments.

    ``history``: measured ns by index, None where the plan could not run. A large pool is cut to
    its best by prior and a random rest.
    """
    closed = history.keys() | pruned
    open_plans = np.array([i for i in range(len(pool.plans)) if i not in closed])
    measured = sum(time_ns is not None for time_ns in history.values())
    if measured < FIRST_CUTS:
        return _by_prior(pool, history, open_plans)
    candidates = _shortlist(pool, open_plans, np.random.RandomState([seed, len(history)]))
    return _by_improvement(pool, history, candidates, seed)


def _by_prior(pool: Pool, history: Mapping[int, float | None], open_plans: Indices) -> list[int]:
    """The best by prior, those of a cut not seen yet first."""
    seen_cuts = {pool.plans[index].slices for index in history}
    old_cut = np.array([pool.plans[index].slices in seen_cuts for index in open_plans])
    return list(open_plans[np.lexsort((pool.log_prior[open_plans], old_cut))].tolist())


def _shortlist(pool: Pool, open_plans: Indices, drawn: np.random.RandomState) -> Indices:
    if len(open_plans) <= SHORTLIST:
        return open_plans
    by_prior = open_plans[np.argsort(pool.log_prior[open_plans], kind="stable")]
    best, rest = by_prior[: SHORTLIST // 2], by_prior[SHORTLIST // 2 :]
    return np.concatenate([best, drawn.choice(rest, SHORTLIST - len(best), replace=False)])


def _by_improvement(
    pool: Pool, history: Mapping[int, float | None], candidates: Indices, seed: int
) -> list[int]:
    """Candidates by falling expected improvement, then by rising expected time."""
    from skopt.acquisition import gaussian_ei

    times = np.log([time_ns for time_ns in history.values() if time_ns is not None])
    model = _Posterior(pool, candidates, _fit(pool, history, seed))
    improvement = gaussian_ei(candidates, model, y_opt=times.min(), xi=0.0)
    order = np.lexsort((candidates, model.mean, -improvement))
    return list(candidates[order].tolist())


def _fit(pool: Pool, history: Mapping[int, float | None], seed: int) -> Any:
    """Fit the process to log(time / prior). What could not run counts as slow as the slowest."""
    from sklearn.exceptions import ConvergenceWarning
    from skopt.learning import GaussianProcessRegressor
    from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern

    seen = np.array(list(history))
    slowest = max(time_ns for time_ns in history.values() if time_ns is not None)
    times = np.log([slowest if time_ns is None else time_ns for time_ns in history.values()])
    width = pool.points.shape[1]
    kernel = ConstantKernel(1.0, (0.01, 1000.0)) * Matern(np.ones(width), (0.1, 30.0), nu=2.5)
    process = GaussianProcessRegressor(
        kernel, alpha=NOISE_FLOOR, normalize_y=True, noise="gaussian", random_state=seed
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # many threads are 7-20 times slower
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(pool.points[seen], times - pool.log_prior[seen])


class _Posterior:
    """The fitted process with the prior added back, over candidates that never change."""

    def __init__(self, pool: Pool, candidates: Indices, process: Any) -> None:
        with threadpool_limits(1):
            residual, self.spread = process.predict(pool.points[candidates], return_std=True)
        self.mean = residual + pool.log_prior[candidates]

    def predict(self, _: Indices, return_std: bool = True) -> tuple[Floats, Floats]:
        """What ``gaussian_ei`` calls."""
        return self.mean, self.spread
