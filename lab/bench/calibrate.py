"""Calibration: how well a few measured iterations predict the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import mean, median
from typing import Final

from domino_tune.base.cores import on_all_cores
from domino_tune.base.garbage import rare_collections
from domino_tune.base.tables import Table
from domino_tune.search.calibration import MeasuredRun, fit_runs, predicted_ms
from lab.bench.runs import Run, runs
from lab.verdict import Check, at_most, check_table, reported

DRAWS: Final = 20
PICKED: Final = 12
"""Rows of a draw: one of each twelfth by the model's size, then by the iteration's time."""


def calibrate() -> list[Table]:
    """Return the errors of the runs that were left out."""
    with rare_collections():
        return [_b200(), _vtrain()]


def _measured(ran: Sequence[Run]) -> list[MeasuredRun]:
    return [
        MeasuredRun(label=run.label, case=run.case, plan=run.plan, measured_ms=run.measured_ms)
        for run in ran
    ]


def _b200() -> Table:
    mine = _measured([run for run in runs("simumax") if run.case.cluster.cp == 1])
    picks = list(combinations(range(len(mine)), 3))
    return check_table(
        f"B200 without context parallelism: {len(picks)} triples of {len(mine)} runs, the others",
        _checks(mine, picks, "triple", 0.025),
    )


def _vtrain() -> Table:
    mine = _measured(runs("vtrain-single", "vtrain-multi"))
    mine.sort(key=lambda run: (run.case.model.parameters, run.measured_ms))
    ends = [number * len(mine) // PICKED for number in range(PICKED + 1)]
    picks = []
    for seed in range(DRAWS):
        drawn = random.Random(seed)
        picks.append([drawn.randrange(low, high) for low, high in pairwise(ends)])
    return check_table(
        f"vTrain: {DRAWS} draws of {PICKED} of {len(mine)} runs, the others",
        _checks(mine, picks, "draw", 0.08),
        [
            "The factors that explain all of the runs best leave 8.1 %: where hosts decide, tp 8 "
            "takes 25 % longer, and 2,048 wide at tp 4 20 % less, than one host of all tells."
        ],
    )


def _checks(
    ran: Sequence[MeasuredRun], picks: Sequence[Sequence[int]], name: str, limit: float
) -> list[Check]:
    """Return how far the runs that were not picked are off, after a fit to those that were."""
    found, factors = [], dict[str, list[float]]()
    for picked in picks:
        fitted = fit_runs([ran[number] for number in picked], on_all_cores)
        others = [run for number, run in enumerate(ran) if number not in picked]
        times_ms = predicted_ms(others, fitted, on_all_cores)
        found.append(
            mean(abs(ms / one.measured_ms - 1) for ms, one in zip(times_ms, others, strict=True))
        )
        for part, learnt in fitted.parts.items():
            factors.setdefault(part, []).append(learnt.factor)
    parts = ", ".join(f"{part} {median(factors[part]):.2f}" for part in sorted(factors))
    return [
        at_most(f"mean error, median {name}", limit, median(found)),
        reported(f"mean error, worst {name}", f"{max(found):.1%}"),
        reported("median factors", parts),
    ]
