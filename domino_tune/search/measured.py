"""Search by measurement: the pool, ratios of rounds, which plans to run, and when to stop.

Each evaluation is a run on real ranks, so every one must count. The baseline is first, then the
simulator's best plan, then the plans with the largest expected improvement, at first only those
with other cuts. At the end, plans that are too close to call are run once more, together. The runs
are callbacks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import MeasureRequest
from domino_tune.search import SEARCHES, by_improvement
from domino_tune.search.problem import SearchOptions
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.search.space import Floats, Observations, Pool, Space, encode
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict

# Ratio --------------------------------------------------------------------------------------------
# Time of a plan relative to the baseline, from rounds in which both take turns.
#
# The speed of a machine drifts by tens of percent within minutes, so times of different moments are
# not comparable. The ratio of two consecutive steps is.

TRIMMED: Final = 0.2
"""Share of rounds left out at each end: a disturbed step says nothing about a plan."""
LEAST_ROUNDS: Final = 3
LEAST_ERROR: Final = 5e-4
"""Least standard error for any number of rounds: clocks, caches and addresses of buffers vary."""
QUANTILE: Final = 0.975
"""Of a two-sided 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """``log``: mean of log(plan / baseline). ``error``: its standard error.

    ``degrees_of_freedom``: of the error; 0 where the ratio is exact.
    """

    log: float
    error: float
    degrees_of_freedom: int

    @property
    def half_width(self) -> float:
        """Return half of the 95 % interval of ``log`` (Student's t)."""
        if not self.degrees_of_freedom:
            return 0.0
        from scipy.stats import t

        return float(t.ppf(QUANTILE, self.degrees_of_freedom)) * self.error

    @property
    def value(self) -> float:
        """Return plan / baseline."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Return the lower end of the 95 % interval of ``value``."""
        return math.exp(self.log - self.half_width)

    @property
    def high(self) -> float:
        """Return the upper end of the 95 % interval of ``value``."""
        return math.exp(self.log + self.half_width)

    def overlaps(self, other: Ratio) -> bool:
        """Return whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


BASELINE_RATIO: Final = Ratio(log=0.0, error=0.0, degrees_of_freedom=0)
"""Ratio of the baseline to itself."""


def ratio_of(plan_ns: Sequence[int], baseline_ns: Sequence[int]) -> Ratio:
    """Return the trimmed mean of log ratios, round by round, with its standard error.

    The error is from the winsorized variance (Yuen 1974). Raise InputError for fewer rounds than
    LEAST_ROUNDS, or times not > 0.
    """
    rounds = min(len(plan_ns), len(baseline_ns))
    if rounds < LEAST_ROUNDS or min(*plan_ns, *baseline_ns) <= 0:
        raise InputError(
            f"A ratio needs {LEAST_ROUNDS} rounds or more of times > 0, got {rounds} rounds."
        )
    logs = np.sort(np.log(np.array(plan_ns[:rounds]) / np.array(baseline_ns[:rounds])))
    cut = int(TRIMMED * rounds)
    middle = logs[cut : rounds - cut]
    winsorized = np.clip(logs, middle[0], middle[-1])
    error = float(np.std(winsorized, ddof=1)) / ((1 - 2 * cut / rounds) * math.sqrt(rounds))
    return Ratio(
        log=float(np.mean(middle)),
        error=max(error, LEAST_ERROR),
        degrees_of_freedom=max(1, len(middle) - 1),
    )


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """Return one ratio for several of the same plan, each weighted by 1 / error²."""
    if len(ratios) == 1:
        return ratios[0]
    weights = np.array([1 / ratio.error**2 for ratio in ratios])
    logs = np.array([ratio.log for ratio in ratios])
    return Ratio(
        log=float(weights @ logs / weights.sum()),
        error=float(weights.sum() ** -0.5),
        degrees_of_freedom=sum(ratio.degrees_of_freedom for ratio in ratios),
    )


# Choose the pool of measured tuning ---------------------------------------------------------------
# The most promising plans of a case, simulated.
#
# A space has tens of thousands of plans and a real run takes seconds. So the pool holds a few
# hundred plans with the best closed-form estimates, of all cuts and orders.

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
        changed = replace(problem.case, factors=replace(problem.case.factors, **change))
        column = _log_times(problem, changed, plans) - base
        columns.append(column - column[0])
    return np.stack(columns, axis=1)


# Search by measurement ----------------------------------------------------------------------------
# Choose which plans to run, when to stop, and which one is the fastest.

BASELINE: Final = 0
"""Index of the baseline in every pool of a measured search."""
TRIALS: Final = 8
STARTS: Final = 3
"""Plans to run after the baseline before a small gain may end the search. The first is the
simulator's best; the others have other coarse cuts, if possible.
"""
SMALL_GAIN: Final = 5e-4
"""Expected improvement of log time below which another run is not worthwhile."""
CLOSE: Final = 0.03
"""Plans whose log time exceeds the fastest's by at least this are not run again."""
FINALISTS: Final = 3
SMALL_INTERVAL: Final = 0.01
"""The fastest plan is accepted if its interval has at most this half-width and overlaps
no other.
"""

Method = Literal["bayes", "exhaustive", "random"]
Stopped = Literal["trials", "small gain", "all measured"]
Measure = Callable[[int], "Ratio | None"]
Compare = Callable[[Sequence[int]], Mapping[int, Ratio]]


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions:
    """``trials``: most plans to measure, including the baseline and plans that cannot run.

    The comparison at the end does not count: it measures no new plan. ``seed``: for method random.
    """

    method: Method = "bayes"
    trials: int = TRIALS
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MeasuredSearch:
    """Result of a search. ``ratios``: by index, all runs of a plan pooled, in order of measuring.

    ``failed``: indices of plans that cannot run. ``compared``: indices of plans run again.
    """

    best: int
    ratios: dict[int, Ratio]
    failed: tuple[int, ...]
    compared: tuple[int, ...]
    stopped: Stopped


@dataclass(kw_only=True)
class MeasuredRatios:
    """Ratios by index: ``evaluated`` of single runs, ``compared`` of the comparison at the end.

    A plan that cannot run is None in ``evaluated``.
    """

    evaluated: dict[int, Ratio | None] = field(default_factory=dict)
    compared: dict[int, Ratio] = field(default_factory=dict)

    @property
    def pooled(self) -> dict[int, Ratio]:
        """Return one ratio for each plan that ran."""
        return {
            index: pooled([ratio, self.compared[index]]) if index in self.compared else ratio
            for index, ratio in self.evaluated.items()
            if ratio is not None
        }


def search_measured(
    pool: Pool,
    measure: Measure,
    compare: Compare,
    options: MeasuredOptions,
    ratios: MeasuredRatios | None = None,
) -> MeasuredSearch:
    """Measure plans until the budget is spent or no gain is expected; continue from ``ratios``.

    ``measure`` runs one plan, alternating with the baseline. For index BASELINE it runs the
    baseline alone, and its ratio is ignored. ``compare`` runs several plans, alternating with the
    baseline.
    """
    ratios = ratios or MeasuredRatios()
    if BASELINE not in ratios.evaluated:
        measure(BASELINE)
        ratios.evaluated[BASELINE] = BASELINE_RATIO
    stopped: Stopped = "trials"
    while len(ratios.evaluated) < options.trials:
        index = propose(pool, ratios.evaluated, options)
        if index is None:
            stopped = "small gain"
            break
        ratios.evaluated[index] = measure(index)
    if len(ratios.evaluated) == len(pool.plans):
        stopped = "all measured"
    again = [index for index in finalists(ratios.pooled) if index not in ratios.compared]
    if again:
        ratios.compared |= compare(again)
    final = ratios.pooled
    return MeasuredSearch(
        best=min(final, key=lambda index: (final[index].log, index)),
        ratios=final,
        failed=tuple(index for index, ratio in ratios.evaluated.items() if ratio is None),
        compared=tuple(ratios.compared),
        stopped=stopped,
    )


def propose(
    pool: Pool, evaluated: Mapping[int, Ratio | None], options: MeasuredOptions
) -> int | None:
    """Return the plan to measure next; None if none is left or none promises enough."""
    candidates = [index for index in range(len(pool.plans)) if index not in evaluated]
    if not candidates:
        return None
    if options.method == "random":
        order = list(range(len(pool.plans)))
        random.Random(options.seed).shuffle(order)
        return next(index for index in order if index not in evaluated)
    starts = len(evaluated) - 1
    if options.method == "exhaustive" or not starts:
        return min(candidates, key=lambda index: (pool.log_prior[index], index))
    if starts < STARTS:
        cuts = {coarse_cut(pool, index) for index in evaluated if index != BASELINE}
        other = [index for index in candidates if coarse_cut(pool, index) not in cuts]
        candidates = other or candidates
    index, gain = by_improvement(pool, observations_of(pool, evaluated), candidates)[0]
    return None if starts >= STARTS and gain < SMALL_GAIN else index


def observations_of(pool: Pool, ratios: Mapping[int, Ratio | None]) -> Observations:
    """Return log times from ``ratios``, as if the baseline took its expected time."""
    baseline = float(pool.log_prior[BASELINE])
    return {
        index: (baseline + ratio.log, ratio.error)
        for index, ratio in ratios.items()
        if ratio is not None
    }


def coarse_cut(pool: Pool, index: int) -> tuple[int, int]:
    """Return row slices and the most column slices of a block; plans that share both are
    similar.
    """
    plan = pool.plans[index]
    return plan.row_slices, max(plan.attn_col_slices, plan.mlp_col_slices)


def finalists(ratios: Mapping[int, Ratio]) -> list[int]:
    """Return the plans to run once more, fastest first; [] if the fastest is certain."""
    ranked = sorted(ratios, key=lambda index: (ratios[index].log, index))
    best = ratios[ranked[0]]
    close = [
        index
        for index in ranked[1:]
        if ratios[index].overlaps(best) and ratios[index].log - best.log < CLOSE
    ]
    if not close and best.half_width <= SMALL_INTERVAL:
        return []
    return [index for index in (ranked[0], *close) if index != BASELINE][:FINALISTS]
