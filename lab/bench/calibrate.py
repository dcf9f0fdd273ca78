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
from domino_tune.search.calibration import Fitted, MeasuredRun, fit_runs, predicted_ms
from lab.bench.runs import Run, b200_runs, vtrain_runs
from lab.verdict import at_most, check_table, reported

DRAWS: Final = 20
PICKED: Final = 12
"""Rows of a draw: one of each twelfth by the model's size, then by the iteration's time."""


def calibrate() -> list[Table]:
    """Return the errors of the runs that were left out."""
    with rare_collections():
        return [_b200(), _vtrain()]


def _measured(runs: Sequence[Run]) -> list[MeasuredRun]:
    return [
        MeasuredRun(label=run.label, case=run.case, plan=run.plan, measured_ms=run.measured_ms)
        for run in runs
    ]


def _error(others: Sequence[MeasuredRun], fitted: Fitted) -> float:
    times_ms = predicted_ms(others, fitted, on_all_cores)
    return mean(
        abs(time_ms / one.measured_ms - 1) for time_ms, one in zip(times_ms, others, strict=True)
    )


def _b200() -> Table:
    runs = _measured([run for run in b200_runs() if run.case.cluster.cp == 1])
    errors, factors = [], []
    for picked in combinations(range(len(runs)), 3):
        fitted = fit_runs([runs[number] for number in picked], on_all_cores)
        others = [run for number, run in enumerate(runs) if number not in picked]
        errors.append(_error(others, fitted))
        factors.append({name: one.factor for name, one in fitted.parts.items()})
    parts = ", ".join(f"{name} {median(one[name] for one in factors):.2f}" for name in factors[0])
    return check_table(
        f"B200 without context parallelism: {len(errors)} triples of {len(runs)} runs, the others",
        [
            at_most("mean error, median triple", 0.025, median(errors)),
            reported("mean error, worst triple", f"{max(errors):.1%}"),
            reported("median factors", parts),
        ],
    )


def _vtrain() -> Table:
    runs = _measured(vtrain_runs())
    runs.sort(key=lambda run: (run.case.model.parameters, run.measured_ms))
    errors, factors = [], []
    for seed in range(DRAWS):
        drawn = random.Random(seed)
        ends = [number * len(runs) // PICKED for number in range(PICKED + 1)]
        picked = {drawn.randrange(low, high) for low, high in pairwise(ends)}
        fitted = fit_runs([runs[number] for number in sorted(picked)], on_all_cores)
        others = [run for number, run in enumerate(runs) if number not in picked]
        errors.append(_error(others, fitted))
        factors.append({name: one.factor for name, one in fitted.parts.items()})
    names = sorted({name for one in factors for name in one})
    parts = ", ".join(
        f"{name} {median(one[name] for one in factors if name in one):.2f}" for name in names
    )
    return check_table(
        f"vTrain: {DRAWS} draws of {PICKED} of {len(runs)} runs, the others",
        [
            at_most("mean error, median draw", 0.08, median(errors)),
            reported("mean error, worst draw", f"{max(errors):.1%}"),
            reported("median factors", parts),
        ],
        [
            "The factors that explain all of the runs best leave 8.1 %: where hosts decide, tp 8 "
            "takes 25 % longer, and 2,048 wide at tp 4 20 % less, than one host of all tells."
        ],
    )
