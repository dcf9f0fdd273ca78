"""Result of `measure`: the best plan by measurement, beside predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results.json_form import to_json
from domino_tune.results.shown import frame
from domino_tune.results.simulate import Interval, workload_line
from domino_tune.results.texts import ms
from domino_tune.results.tune import TuneResult
from simulator.plan import SlicePlan

if TYPE_CHECKING:
    from pandas import DataFrame

STOPPED: Final = {
    "trials": "--trials is reached",
    "small gain": "every other plan has a small expected gain",
    "all measured": "every plan was measured",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """A plan that was run, or that could not: ``failed`` then says why, and its numbers are None.

    ``speedup``: time of the baseline over time of the plan, of steps that followed each other;
    ``speedup_interval`` contains it with 95 %. ``measured_ms``: the baseline's median over all its
    steps, divided by the speedup. ``compared``: the plan was run again at the end, beside the other
    plans that were close.
    """

    plan: SlicePlan
    predicted_ms: float
    predicted_speedup: float
    measured_ms: float | None
    measured_interval_ms: Interval | None
    speedup: float | None
    speedup_interval: Interval | None
    peak_memory_gib: float | None
    compared: bool
    failed: str


@dataclass(frozen=True, kw_only=True)
class MeasuredTuneResult(TuneResult):
    """``best`` simulates the plan that measured fastest.

    ``optimality`` is ``best_found``, or ``all_measured`` where every plan of the space was run.
    ``measured``: all plans in the order of their runs, the baseline first; ``chosen`` and
    ``baseline`` are two of them. ``stopped`` is trials, small gain or all measured. ``new_runs``:
    plans that this call ran; the others were in ``evidence``. ``comparisons``: launches that ran
    measured plans again, side by side; ``evaluations`` does not count them.
    """

    chosen: MeasuredPlan
    baseline: MeasuredPlan
    measured: tuple[MeasuredPlan, ...]
    stopped: str
    rounds: int
    comparisons: int
    new_runs: int
    evidence: str
    resume: str
    backend: str
    emulate_link_bits_per_s: int | None
    machine_differences: tuple[str, ...]
    warnings: tuple[str, ...]

    def tables(self) -> Sequence[Table]:
        """Return every plan that was run, fastest first; then the prediction of the best."""
        best = self.best
        table = Table(
            title="Measured: "
            + workload_line(best.model, best.workload, best.cluster, self.backend),
            columns=(
                "plan", ">measured", ">± 95 %", ">speedup", ">± 95 %", ">predicted",
                ">predicted speedup", ">memory", "",
            ),
            rows=[_row(one, one is self.chosen) for one in self._ranked()],
            marked=[i for i, one in enumerate(self._ranked()) if one is self.chosen],
            notes=list(_notes(self)),
        )  # fmt: skip
        return (table, *best.tables())

    def alerts(self) -> Sequence[str]:
        """Return the warnings of the runs, then those of the best plan's prediction."""
        return (*self.warnings, *self.best.alerts())

    def to_frame(self) -> DataFrame:
        """Return one row a plan that was run, fastest first; ``chosen`` marks the best plan."""
        columns = [
            "chosen", "plan", *(item.name for item in fields(SlicePlan)), "measured_ms",
            "measured_low_ms", "measured_high_ms", "speedup", "speedup_low", "speedup_high",
            "predicted_ms", "predicted_speedup", "peak_memory_gib", "failed",
        ]  # fmt: skip
        return frame((_frame_row(one, one is self.chosen) for one in self._ranked()), columns)

    def _ranked(self) -> list[MeasuredPlan]:
        return sorted(self.measured, key=lambda one: (one.speedup is None, -(one.speedup or 0)))

    def to_json(self) -> Any:
        """Return what was measured, then the fields of `tune`.

        A time is simulated where its name does not contain ``measured``.
        """
        mine = {item.name for item in fields(self)} - {item.name for item in fields(TuneResult)}
        answer = {name: value for name, value in super().to_json().items() if name not in mine}
        best = {
            **answer.pop("best"),
            "measured_ms": to_json(self.chosen.measured_ms),
            "measured_interval_ms": to_json(self.chosen.measured_interval_ms),
            "measured_speedup": to_json(self.chosen.speedup),
            "measured_speedup_interval": to_json(self.chosen.speedup_interval),
        }
        rest = {
            name: to_json(getattr(self, name)) for name in sorted(mine - {"chosen", "baseline"})
        }
        return {
            "objective": "measure",
            "best": best,
            "measured_baseline_ms": to_json(self.baseline.measured_ms),
            "measured_baseline_interval_ms": to_json(self.baseline.measured_interval_ms),
            **rest,
            **answer,
        }


def _frame_row(one: MeasuredPlan, chosen: bool) -> dict[str, Any]:
    row = {**asdict(one.plan), **{item.name: getattr(one, item.name) for item in fields(one)}}
    for name, interval in (
        ("measured_{}_ms", one.measured_interval_ms), ("speedup_{}", one.speedup_interval)
    ):  # fmt: skip
        if interval is not None:
            row |= {name.format("low"): interval.low, name.format("high"): interval.high}
    return {**row, "plan": one.plan.label, "chosen": chosen}


def _row(one: MeasuredPlan, chosen: bool) -> tuple[str, ...]:
    remark = one.failed or ("chosen" if chosen else "")
    predicted = (ms(one.predicted_ms), f"{one.predicted_speedup:.3f}x")
    if one.measured_ms is None or one.measured_interval_ms is None:
        return (one.plan.label, "", "", "", "", *predicted, "", remark)
    time, speedup = one.measured_interval_ms, one.speedup_interval
    memory = "" if one.peak_memory_gib is None else f"{one.peak_memory_gib:.2f} GiB"
    return (
        one.plan.label, ms(one.measured_ms), f"{(time.high - time.low) / 2:,.1f}",
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
