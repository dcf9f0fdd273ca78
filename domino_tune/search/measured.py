"""Search by measurement: choose which plans to run, when to stop, and which one is the fastest.

Each evaluation is a run on real ranks, so every one must count. The baseline is first, then the
simulator's best plan, then the plans with the largest expected improvement, at first only those
with other cuts. At the end, plans that are too close to call are run once more, together. The runs
are callbacks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from domino_tune.search.bayes import by_improvement
from domino_tune.search.features import Observations, Pool
from domino_tune.search.ratios import BASELINE_RATIO, Ratio, pooled

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
