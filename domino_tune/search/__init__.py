"""Searches for the best plan: exhaustive, Bayesian, random, over the simulator or over real runs.

May import store, requests, base and the simulator.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from domino_tune.search.problem import (
    DEFAULT_TRIALS,
    Evaluation,
    Optimality,
    Record,
    SearchOptions,
    SearchProblem,
    SearchResult,
    Trial,
    choose_best,
    outcome,
    ties,
)
from domino_tune.search.space import (
    Indices,
    Observations,
    Pool,
    encode,
)
from simulator.errors import InfeasiblePlanError, InputError

# Ledger -------------------------------------------------------------------------------------------
# Evaluates plans for a search, and records the results.


class Ledger:
    """Evaluates plans of a problem by index, each at most once, within a budget.

    ``record`` holds all results; an interrupted search continues from it. Raise InputError if there
    is no plan to search.
    """

    def __init__(
        self, problem: SearchProblem, options: SearchOptions, *, trials: int | None
    ) -> None:
        self.plans = problem.plans
        if not len(self.plans):
            raise InputError(
                "No plan is left to search: every one is infeasible for this model and batch."
            )
        self._problem = problem
        self._progress = options.progress
        self._pause = options.pause
        self._budget = min(len(self.plans), trials if trials is not None else len(self.plans))
        self.record = Record() if options.record is None else options.record
        self.trials: list[Trial] = self.record.trials
        self.fastest_ns = min((trial.iteration_ns for trial in self.trials), default=None)

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations, including those before an interruption."""
        return len(self.record.history)

    @property
    def spent(self) -> bool:
        """Return whether the budget is used up."""
        return self.evaluations >= self._budget

    def evaluate(self, index: int) -> int | None:
        """Evaluate plan ``index``; return its time in ns, or None if it cannot run."""
        return self.record_outcome(index, outcome(self._problem, self.plans[index]))

    def record_outcome(self, index: int, cost: Evaluation | InfeasiblePlanError) -> int | None:
        """Record the outcome of evaluating plan ``index``; return as ``evaluate`` does."""
        plan = self.plans[index]
        if isinstance(cost, InfeasiblePlanError):
            self.record.history[index] = cost
            self._tell(None)
            return None
        trial = Trial(
            plan=plan, iteration_ns=cost.iteration_ns, peak_bytes=cost.peak_bytes, index=index
        )
        self.record.history[index] = trial
        self.trials.append(trial)
        self.fastest_ns = min(trial.iteration_ns, self.fastest_ns or trial.iteration_ns)
        self._tell(trial)
        return trial.iteration_ns

    def _tell(self, trial: Trial | None) -> None:
        if self._progress is not None:
            self._progress(trial)
        self._pause()

    def ruled_out(self, bound_ns: int) -> bool:
        """Return whether a plan that takes at least ``bound_ns`` can neither be the best nor tie
        with it.
        """
        return self.fastest_ns is not None and not ties(bound_ns, self.fastest_ns)

    def result(self, *, pruned: int = 0) -> SearchResult:
        """Return the result with the best trial. Raise InfeasiblePlanError if no plan can run."""
        if not self.trials:
            raise self._nothing_fits()
        covered = self.evaluations + pruned == len(self.plans)
        optimality: Optimality = "proven" if covered else "best_found"
        reasons = Counter(error.reason for error in self.record.failed.values())
        return SearchResult(
            best=choose_best(self.trials),
            trials=tuple(self.trials),
            optimality=optimality,
            evaluations=self.evaluations,
            space_size=len(self.plans),
            pruned=pruned,
            infeasible=dict(sorted(reasons.items())),
        )

    def _nothing_fits(self) -> InfeasiblePlanError:
        first = next(iter(self.record.failed.values()))
        more = " Others may: allow more --trials." if self.evaluations < len(self.plans) else ""
        return InfeasiblePlanError(
            f"None of the {self.evaluations} plans tried of {len(self.plans)} can run; the first "
            f"says: {first}{more}",
            reason=first.reason,
        )


# Exhaustive search --------------------------------------------------------------------------------
# Find the fastest plan, evaluate only what a lower bound does not rule out.


def search_exhaustive(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Evaluate in ascending order of bound; stop when the next bound is above the tie band.

    No other order needs fewer evaluations with these bounds: a plan is evaluated before the
    optimum only if its bound is not above the optimum. Raise InfeasiblePlanError when no plan can
    run.
    """
    ledger = Ledger(problem, options, trials=options.trials)
    known = set(ledger.record.history)
    looks = options.ahead(
        lambda look: outcome(problem, ledger.plans[look.number]),
        (look for look in by_bound(problem) if look.number not in known),
    )
    with closing(looks):  # type: ignore[type-var]  # both ways to look ahead are generators
        for look, cost in looks:
            if ledger.ruled_out(look.bound_ns):
                return ledger.result(pruned=len(ledger.plans) - ledger.evaluations)
            if ledger.spent:
                break
            ledger.record_outcome(look.number, cost())
    return ledger.result()


FEW_BOUNDS: Final = 8
"""Exact bounds that are computed together at first; later as many as an eighth of those before."""


class BoundedPlan(NamedTuple):
    """A plan's exact lower bound (ns), and the plan's number."""

    bound_ns: int
    number: int


def by_bound(problem: SearchProblem) -> Iterator[BoundedPlan]:
    """Yield the plans in ascending order of their exact bounds, which are computed when quick ones
    are not enough to tell, more and more at a time."""
    quick_ns = np.asarray(problem.quick_bounds_ns)
    order, done = np.argsort(quick_ns, kind="stable").tolist(), 0
    looks: list[BoundedPlan] = []
    while done < len(order):
        next_ = order[done : done + max(FEW_BOUNDS, done // FEW_BOUNDS)]
        while looks and looks[0].bound_ns < quick_ns[next_[0]]:
            yield heappop(looks)
        bounds_ns = problem.lower_bounds_ns([problem.plans[number] for number in next_])
        for look in map(BoundedPlan, bounds_ns, next_):
            heappush(looks, look)
        done += len(next_)
    while looks:
        yield heappop(looks)


# Random search ------------------------------------------------------------------------------------
# A seeded sample of plans without replacement. The reference for others.


def search_random(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Evaluate ``trials`` plans drawn at random. Raise InfeasiblePlanError when none can run."""
    ledger = Ledger(problem, options, trials=options.trials or DEFAULT_TRIALS)
    drawn = random.Random(options.seed)
    for index in drawn.sample(range(len(ledger.plans)), len(ledger.plans)):
        if ledger.spent:
            break
        if index not in ledger.record.history:
            ledger.evaluate(index)
    return ledger.result()


# Bayesian search ----------------------------------------------------------------------------------
# Evaluate the plan of a pool that promises the largest expected improvement.
#
# Expected improvement is computed for every plan that was not evaluated, so no plan is evaluated
# twice and no constraint has to be learnt. scikit-optimize's ``gp_minimize`` rounds a continuous
# optimum instead, often to an evaluated plan, and then draws one at random.

FIRST_CUTS: Final = 4
"""Plans, each of another cut, that are evaluated before the process is fitted."""
ERROR: Final = 1e-3
"""Standard error of a simulated log time. It is exact, but a fit to exact times is unstable."""


def search_bayes(problem: SearchProblem, options: SearchOptions) -> SearchResult:
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


def _pool_of(problem: SearchProblem) -> Pool:
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


# Searches for the best plan -----------------------------------------------------------------------

Search = Callable[[SearchProblem, SearchOptions], SearchResult]
SEARCHES: Final[dict[str, Search]] = {
    "exhaustive": search_exhaustive,
    "bayes": search_bayes,
    "random": search_random,
}
