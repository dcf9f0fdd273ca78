"""Search by measurement: each evaluation is a real run, so every one must count.

The baseline comes first, then the simulator's best; then what promises the largest expected
improvement under what was learnt of the simulator's errors, at first of other cuts only. Last, the
plans that are too close to call are run once more, all in turn in one launch. Pure: runs are a
callback.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from domino_tune.search.correction import BASELINE, Belief, MeasuredPool, believe
from domino_tune.search.ratios import BASELINE_RATIO, Ratio, pooled

TRIALS: Final = 8
STARTS: Final = 3
"""Plans that are run after the baseline, each of another coarse cut while there is one, before a
small gain ends the search. The first is the simulator's best, the belief chooses the others."""
SMALL_GAIN: Final = 5e-4
"""Expected improvement, relative, below which another run is not worth its time."""
CLOSE: Final = 0.03
"""Plans further behind the fastest than this are not run again."""
FINALISTS: Final = 3
SMALL_INTERVAL: Final = 0.01
"""Half-width of the fastest's interval that needs no second run, if no other plan overlaps."""

Method = Literal["bayes", "exhaustive", "random"]
Stopped = Literal["trials", "small gain", "all measured"]
Measure = Callable[[int], "Ratio | None"]
Compare = Callable[[Sequence[int]], Mapping[int, Ratio]]


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions:
    """``trials``: plans to measure at most, the baseline and those that cannot run included; the
    comparison at the end is not counted, it measures no new plan."""

    method: Method = "bayes"
    trials: int = TRIALS
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MeasuredSearch:
    """What was found. ``ratios``: by index, all runs of a plan pooled, in order of measuring;
    ``failed``: indices of plans that cannot run. ``compared``: finalists that were run again."""

    best: int
    ratios: dict[int, Ratio]
    failed: tuple[int, ...]
    compared: tuple[int, ...]
    stopped: Stopped


@dataclass(kw_only=True)
class Known:
    """What has been measured before, or by now: by index, None where a plan cannot run.

    ``again``: what the comparison of finalists gave, where there was one.
    """

    ratios: dict[int, Ratio | None] = field(default_factory=dict)
    again: dict[int, Ratio] = field(default_factory=dict)

    @property
    def feasible(self) -> dict[int, Ratio]:
        """Pooled ratios of the plans that ran."""
        return {
            index: pooled([ratio, self.again[index]]) if index in self.again else ratio
            for index, ratio in self.ratios.items()
            if ratio is not None
        }


def search_measured(
    pool: MeasuredPool,
    measure: Measure,
    compare: Compare,
    options: MeasuredOptions,
    known: Known | None = None,
) -> MeasuredSearch:
    """Measure plans until the budget is spent or no gain is in sight; ``known`` is not run again.

    ``measure`` runs one plan beside the baseline (and the baseline alone for index BASELINE, its
    ratio is not looked at); ``compare`` runs several in turn, with the baseline.
    """
    known = known or Known()
    if BASELINE not in known.ratios:
        measure(BASELINE)
        known.ratios[BASELINE] = BASELINE_RATIO
    stopped: Stopped = "trials"
    while len(known.ratios) < options.trials:
        index = propose(pool, known.ratios, options)
        if index is None:
            stopped = "small gain"
            break
        known.ratios[index] = measure(index)
    if len(known.ratios) == len(pool.plans):
        stopped = "all measured"
    again = [index for index in finalists(known.feasible) if index not in known.again]
    if again:
        known.again |= compare(again)
    ratios = known.feasible
    return MeasuredSearch(
        best=min(ratios, key=lambda index: (ratios[index].log, index)),
        ratios=ratios,
        failed=tuple(index for index, ratio in known.ratios.items() if ratio is None),
        compared=tuple(known.again),
        stopped=stopped,
    )


def propose(
    pool: MeasuredPool, seen: Mapping[int, Ratio | None], options: MeasuredOptions
) -> int | None:
    """The plan to measure next; None when all are measured or none promises enough."""
    open_plans = [index for index in range(len(pool.plans)) if index not in seen]
    if not open_plans:
        return None
    if options.method == "exhaustive":
        return min(open_plans, key=lambda index: (pool.log_prior[index], index))
    if options.method == "random":
        drawn = list(range(len(pool.plans)))
        random.Random(options.seed).shuffle(drawn)
        return next(index for index in drawn if index not in seen)
    return _by_improvement(pool, seen, open_plans)


def _by_improvement(
    pool: MeasuredPool, seen: Mapping[int, Ratio | None], open_plans: Sequence[int]
) -> int | None:
    tried = len(seen) - 1
    if tried == 0:
        return min(open_plans, key=lambda index: (pool.log_prior[index], index))
    measured = {index: ratio for index, ratio in seen.items() if ratio is not None}
    belief = believe(pool, measured)
    candidates = open_plans
    if tried < STARTS:
        cuts = {coarse_cut(pool, index) for index in seen if index != BASELINE}
        other = [index for index in open_plans if coarse_cut(pool, index) not in cuts]
        candidates = other or open_plans
    gains = _improvements(belief, measured, candidates)
    at = int(np.lexsort((belief.mean[candidates], -gains))[0])
    if tried >= STARTS and gains[at] < SMALL_GAIN:
        return None
    return candidates[at]


def _improvements(
    belief: Belief, measured: Mapping[int, Ratio], candidates: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Expected improvement of each candidate over the best plan measured, as believed."""
    from scipy.stats import norm

    least = min(belief.mean[index] for index in measured)
    mean, spread = belief.mean[list(candidates)], belief.spread[list(candidates)]
    z = (least - mean) / spread
    return np.asarray(spread * (z * norm.cdf(z) + norm.pdf(z)))


def coarse_cut(pool: MeasuredPool, index: int) -> tuple[int, int]:
    """Row slices, and the most column slices of a block: plans alike in this are much alike."""
    plan = pool.plans[index]
    return plan.row_slices, max(plan.attn_col_slices, plan.mlp_col_slices)


def finalists(ratios: Mapping[int, Ratio]) -> list[int]:
    """The plans to run once more, fastest first; none where the fastest is sure to be it."""
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
