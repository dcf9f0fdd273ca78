"""Print results of ``tune --objective measure`` as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli import show
from domino_tune.results.simulate import workload_line
from domino_tune.results.tune_measured import MeasuredPlan, MeasuredTuneResult

STOPPED = {
    "trials": "--trials is reached",
    "small gain": "every other plan has a small expected gain",
    "all measured": "every plan was measured",
}


def tune(result: MeasuredTuneResult) -> None:
    """Print every plan that was run, fastest first; then the prediction of the best."""
    ranked = sorted(result.measured, key=lambda one: (one.speedup is None, -(one.speedup or 0)))
    best = result.best
    print_table(
        Table(
            title="Measured: "
            + workload_line(best.model, best.workload, best.cluster, result.backend),
            columns=(
                "plan", ">measured", ">± 95 %", ">speedup", ">± 95 %", ">predicted",
                ">predicted speedup", ">memory", "",
            ),
            rows=[_row(one, one is result.chosen) for one in ranked],
            marked=[i for i, one in enumerate(ranked) if one is result.chosen],
            notes=list(_notes(result)),
        )
    )  # fmt: skip
    show.warn(result.warnings)
    show.simulate(best)


def _row(one: MeasuredPlan, chosen: bool) -> tuple[str, ...]:
    remark = one.failed or ("chosen" if chosen else "")
    predicted = (show.ms(one.predicted_ms), f"{one.predicted_speedup:.3f}x")
    if one.measured_ms is None or one.measured_interval_ms is None:
        return (one.plan.label, "", "", "", "", *predicted, "", remark)
    time, speedup = one.measured_interval_ms, one.speedup_interval
    memory = "" if one.peak_memory_gib is None else f"{one.peak_memory_gib:.2f} GiB"
    return (
        one.plan.label, show.ms(one.measured_ms), f"{(time.high - time.low) / 2:,.1f}",
        f"{one.speedup:.3f}x",
        "" if speedup is None else f"{(speedup.high - speedup.low) / 2:.3f}",
        *predicted, memory, remark,
    )  # fmt: skip


def _notes(result: MeasuredTuneResult) -> Iterator[str]:
    again = sum(one.compared for one in result.measured)
    yield (
        f"{result.search}: {result.evaluations} plans of {result.space_size:,} combinations, "
        f"{result.new_runs} of them run now; stopped because {STOPPED[result.stopped]}; "
        f"{result.seconds:.0f} s."
    )
    if result.comparisons:
        launches = "1 launch" if result.comparisons == 1 else f"{result.comparisons} launches"
        yield (
            f"{again} of these plans were close and were run once more, side by side: {launches} "
            "that --trials does not count."
        )
    yield (
        "Each speedup compares a step with the baseline's step before it: machine drift cancels."
    )
    yield f"Evidence: {result.evidence}"


def interrupted(message: str) -> None:
    """Print where the evidence is, and how to go on."""
    print_line(message, sys.stderr)
