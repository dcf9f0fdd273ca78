"""Results of measure and validate: times on real ranks beside predicted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results import HIDDEN
from domino_tune.results.shown import NONE, Shown, factor, frame, memory, ms, percent, workload_line
from domino_tune.results.simulate import Interval
from domino_tune.results.tune import TuneResult
from domino_tune.store.plans import ProfileRef
from simulator.plan import SlicePlan
from simulator.schedule import Timeline
from simulator.specs import ClusterSpec, ModelSpec, Workload

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
    ``measured``: all plans in the order of their runs, the baseline first. ``chosen``, the best,
    and ``baseline`` are two of them; all other times are simulated. ``stopped`` is trials, small
    gain or all measured. ``new_runs``: plans that this call ran; the others were in ``evidence``.
    ``comparisons``: launches that ran measured plans again, side by side; ``evaluations`` does not
    count them.
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


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One iteration, predicted or measured.

    ``speedup``: the baseline's time over this one's, None where the baseline was not measured.
    Measured communication is that of the median step.
    """

    iteration_ms: float
    speedup: float | None
    comm_ms: float | None
    exposed_comm_ms: float | None
    hidden_comm_fraction: float | None
    peak_memory_gib: float | None


@dataclass(frozen=True, kw_only=True)
class RoleTimes:
    """All ops of one role: their number, and their total time in flight.

    ``ratio`` is measured over predicted. Predicted times include the slowdown of ops that overlap.
    """

    role: str
    count: int
    predicted_ms: float
    measured_ms: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class ValidatedPlan:
    """One plan.

    ``error``: predicted over measured, less 1; ``error_at_present_speed``: the same with compute
    predicted at the speed that the machine has now. ``interval_ms`` contains the true median with
    95 %; with fewer than six rounds it is their range. ``spread_ms``: half of the interquartile
    range. ``measured`` and the fields that depend on it are None where the plan was not run;
    ``failed`` then says why. ``loss``: that of the first round. ``captured``: measured as a CUDA
    graph; ``why_not_captured`` says why not where one was asked for.
    """

    name: str
    plan: SlicePlan
    predicted: Iteration
    measured: Iteration | None
    error: float | None
    error_at_present_speed: float | None
    interval_ms: Interval | None
    spread_ms: float | None
    loss: float | None
    failed: str
    makespans_ms: tuple[float, ...]
    roles: tuple[RoleTimes, ...]
    captured: bool = False
    why_not_captured: str = ""

    def to_frame(self) -> DataFrame:
        """Return one row a role of ops, predicted beside measured; none where no step ran."""
        columns = [item.name for item in fields(RoleTimes)]
        return frame((asdict(row) for row in self.roles), columns)


@dataclass(frozen=True, kw_only=True)
class ValidateResult(Shown):
    """Plans on real ranks beside their predictions.

    The first plan is the baseline, the second the bound without communication. ``profile``: the
    profile that predicted. ``present_speed``: the machine's speed over its speed when it was
    profiled. ``machine_differences``: how this machine differs from the profile's.
    ``interrupted``: fewer rounds ran than asked for. ``emulated_collectives``: one rank ran, and
    collectives took the profile's times.
    """

    plans: tuple[ValidatedPlan, ...]
    max_error: float | None
    present_speed: float | None
    profile: ProfileRef
    machine_differences: tuple[str, ...]
    warnings: tuple[str, ...]
    rounds: int
    interrupted: bool
    emulated_collectives: bool
    backend: str
    emulate_link_bits_per_s: int | None
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    timelines: dict[str, Timeline] = field(metadata=HIDDEN, repr=False)

    def tables(self) -> Sequence[Table]:
        """Return times, then communication and memory, then the ops of each given plan."""
        ops = (_roles(plan) for plan in self.plans[2:] if plan.roles)
        return (_times(self), _communication(self), *ops)

    def to_frame(self) -> DataFrame:
        """Return one row a plan: each quantity predicted, then measured.

        A plan of ``plans`` has a frame of its ops.
        """
        names = [item.name for item in fields(Iteration)]
        sides = [f"{side}_{name}" for name in names for side in ("predicted", "measured")]
        columns = [
            "name", "plan", *sides, "error", "error_at_present_speed", "measured_low_ms",
            "measured_high_ms", "rounds", "failed",
        ]  # fmt: skip
        return frame((_validated_row(plan) for plan in self.plans), columns)


def _validated_row(one: ValidatedPlan) -> dict[str, Any]:
    row: dict[str, Any] = {
        f"{side}_{name}": value
        for side, numbers in (("predicted", one.predicted), ("measured", one.measured))
        if numbers is not None
        for name, value in asdict(numbers).items()
    }
    if one.interval_ms is not None:
        row |= {"measured_low_ms": one.interval_ms.low, "measured_high_ms": one.interval_ms.high}
    return {
        **row, "name": one.name, "plan": one.plan.label, "error": one.error,
        "error_at_present_speed": one.error_at_present_speed, "rounds": len(one.makespans_ms),
        "failed": one.failed,
    }  # fmt: skip


def _times(result: ValidateResult) -> Table:
    return Table(
        title=workload_line(result.model, result.workload, result.cluster, result.profile.name),
        columns=(
            "", "plan", ">predicted", ">measured", ">95 % interval", ">error",
            ">at present speed", ">speedup predicted", ">measured speedup", ">rounds",
        ),
        rows=[_time_row(plan) for plan in result.plans],
        marked=range(2, len(result.plans)),
        notes=[*_interrupted(result), _conditions(result), _speed_line(result)],
        narrow=(
            "rounds", "at present speed", "95 % interval", "speedup predicted",
            "measured speedup", "plan",
        ),
        below="plan",
    )  # fmt: skip


def _time_row(one: ValidatedPlan) -> tuple[str, ...]:
    predicted, measured, interval = one.predicted, one.measured, one.interval_ms
    return (
        one.name, one.plan.label, ms(predicted.iteration_ms),
        ms(measured.iteration_ms) if measured else one.failed or NONE,
        f"{interval.low:,.1f}–{interval.high:,.1f} ms" if interval else NONE,
        percent(one.error), percent(one.error_at_present_speed),
        factor(predicted.speedup), factor(measured.speedup if measured else None),
        str(len(one.makespans_ms)),
    )  # fmt: skip


def _interrupted(result: ValidateResult) -> list[str]:
    return ["Interrupted: only the rounds until then are shown."] if result.interrupted else []


def _conditions(result: ValidateResult) -> str:
    link = result.emulate_link_bits_per_s
    over = f"{result.backend} over an emulated link of {link / 1e6:,.0f} Mbit/s" if link else (
        result.backend
    )  # fmt: skip
    if result.emulated_collectives:
        over = "emulated collectives, whose times come from the profile and were not measured"
    return (
        f"Measured over {over}: median over rounds of the slowest rank. Predicted with "
        f"{result.profile.name}, {result.profile.content_id}."
    )


def _speed_line(result: ValidateResult) -> str:
    if result.present_speed is None:
        return "The present speed of the machine was not measured."
    return (
        f"The machine computes {result.present_speed:.3f} times as fast now as when it was "
        "profiled; the error at present speed is that of a prediction with this factor."
    )


def _communication(result: ValidateResult) -> Table:
    return Table(
        title="Communication and memory, predicted and measured",
        columns=(
            "", ">exposed", ">measured exposed", ">hidden", ">measured hidden",
            ">memory", ">measured memory",
        ),
        rows=[
            (
                one.name,
                *_pair(one, "exposed_comm_ms", ms),
                *_pair(one, "hidden_comm_fraction", lambda share: f"{share:.0%}"),
                *_pair(one, "peak_memory_gib", memory),
            )
            for one in result.plans
        ],
        marked=range(2, len(result.plans)),
    )  # fmt: skip


def _pair(one: ValidatedPlan, name: str, text: Callable[[float], str]) -> tuple[str, str]:
    """Return a number predicted and measured, as text."""

    def cell(side: Iteration | None) -> str:
        value = getattr(side, name) if side else None
        return NONE if value is None else text(value)

    return cell(one.predicted), cell(one.measured)


def _roles(one: ValidatedPlan) -> Table:
    return Table(
        title=f"Ops of {one.name}: {one.plan.label}",
        columns=("op", ">count", ">predicted", ">measured", ">measured / predicted"),
        rows=[_role_row(row) for row in one.roles],
    )


def _role_row(row: RoleTimes) -> tuple[str, ...]:
    return (
        row.role, str(row.count), f"{row.predicted_ms:,.2f} ms", f"{row.measured_ms:,.2f} ms",
        NONE if row.ratio is None else f"{row.ratio:.3f}",
    )  # fmt: skip
