"""Published runs of whole jobs beside predictions. Nothing is fitted to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import geometric_mean, mean
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.verbs.simulate import shortened
from lab.bench.runs import (
    CI_KEYS,
    CI_UNKNOWN,
    Run,
    b200_runs,
    ci_run,
    korthikanti_runs,
    megatron,
    tokenweave_passes,
)
from lab.verdict import Check, at_most, check_table
from simulator.case import Case
from simulator.confidence import confidence_of
from simulator.peak import peak_bytes
from simulator.plan import NO_COMM, SlicePlan
from simulator.predict import played, predict, unsure_clocks
from simulator.record import record
from simulator.units import GIB, MS_PER_NS

HALF_WIDTH: Final = 0.15
"""Largest half-width of an interval that still tells a user something."""


WHY_SHORT: Final = (
    "The micro-batches of the B200 are too short by the same share, 9 to 11 %, at each TP: what is "
    "missing grows with compute, not with communication. It is not the clock of its GEMM rows: "
    "long ones were timed at the cap themselves. A GPU that is hotter after minutes, or the "
    "slowest of eight, would explain it; nobody has published either."
)


class Found(NamedTuple):
    """A run and its prediction; ``low`` and ``high``: the interval, over the prediction."""

    run: Run
    ms: float
    gib: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return the relative error of the iteration time."""
        return self.ms / self.run.measured_ms - 1

    @property
    def memory_error(self) -> float:
        """Return the relative error of the peak memory."""
        assert self.run.gib is not None
        return self.gib / self.run.gib - 1


def published() -> list[Table]:
    """Return each run, what is asked of each table, and whether intervals hold the truth."""
    b200 = [_found(run) for run in b200_runs()]
    ci = [_found(ci_run(gpu, _all_keys())) for gpu in ("h100", "a100")]
    korthikanti = [_found(run) for run in korthikanti_runs()]
    return [
        _each([*b200, *ci, *korthikanti]),
        _parts(_split(b200)[0]),
        _conditions(),
        _checks(b200, ci, korthikanti),
        _coverage([*b200, *ci, *korthikanti]),
        _forward(),
    ]


def _found(run: Run) -> Found:
    case, plan = run.case, run.plan
    shown = shortened(case)
    found = played(shown, plan)
    timeline = record(found.schedule, found.program)
    interval = confidence_of(timeline, found.cost, unsure_clocks(shown, found))
    return Found(
        run, predict(case, plan).makespan_ns * MS_PER_NS, peak_bytes(case, plan) / GIB,
        interval.low_ns / timeline.makespan_ns, interval.high_ns / timeline.makespan_ns,
    )  # fmt: skip


def _all_keys() -> tuple[str, ...]:
    return tuple(key for keys in CI_KEYS.values() for key in keys)


def _each(found: Sequence[Found]) -> Table:
    rows = [
        (
            one.run.case.profile.name, one.run.label, f"{one.run.measured_ms:,.1f}",
            f"{one.ms:,.1f}", f"{one.error:+.1%}",
            f"{one.run.peer_ms / one.run.measured_ms - 1:+.1%}" if one.run.peer_ms else "",
            f"{one.run.gib:.2f}" if one.run.gib else "", f"{one.gib:.2f}",
            f"{one.memory_error:+.2%}" if one.run.gib else "",
        )
        for one in found
    ]  # fmt: skip
    return Table(
        title="Published runs, ms and GiB; nothing fitted",
        columns=(
            "profile", "run, micro-batches", ">measured", ">predicted", ">error", ">SimuMax",
            ">GiB", ">predicted", ">error",
        ),
        rows=rows,
    )  # fmt: skip


class Line(NamedTuple):
    """ms = fixed + slope · micro-batches, through a layout's least and most micro-batches."""

    slope: float
    fixed: float


def _line(points: Iterable[tuple[int, float]]) -> Line:
    ordered = sorted(points)
    (few, low), (many, high) = ordered[0], ordered[-1]
    slope = (high - low) / (many - few)
    return Line(slope, low - few * slope)


def _lines(found: Sequence[Found]) -> dict[str, tuple[Line, Line]]:
    """Return measured and predicted lines by layout."""
    lines = {}
    for layout, group in groupby(
        sorted(found, key=lambda one: one.run.layout), key=lambda one: one.run.layout
    ):
        some = [(one.run.case.workload.grad_accumulation, one) for one in group]
        lines[layout] = (
            _line((micros, one.run.measured_ms) for micros, one in some),
            _line((micros, one.ms) for micros, one in some),
        )
    return lines


def _parts(found: Sequence[Found]) -> Table:
    rows = [
        (
            layout, f"{run.slope:.2f}", f"{ours.slope:.2f}", f"{ours.slope / run.slope - 1:+.1%}",
            f"{run.fixed:.1f}", f"{ours.fixed:.1f}", f"{ours.fixed / run.fixed - 1:+.1%}",
        )
        for layout, (run, ours) in _lines(found).items()
    ]  # fmt: skip
    return Table(
        title="B200: ms a micro-batch, and the rest of an iteration",
        columns=(
            "layout", ">slope", ">predicted", ">error", ">fixed", ">predicted", ">error",
        ),
        rows=rows,
    )  # fmt: skip


def _conditions() -> Table:
    """Return what each condition of Megatron-LM's CI run adds, alone."""
    rows = []
    for gpu in ("h100", "a100"):
        plain = ci_run(gpu, ())
        usual = predict(plain.case, plain.plan).makespan_ns * MS_PER_NS
        rows.append((gpu, "megatron-te without them", f"{usual:,.1f}", ""))
        for condition, keys in CI_KEYS.items():
            run = ci_run(gpu, keys)
            more = predict(run.case, run.plan).makespan_ns * MS_PER_NS - usual
            rows.append((gpu, condition, f"{more:+,.1f}", f"{more / run.measured_ms:+.1%}"))
    return Table(
        title="Conditions of Megatron-LM's CI run, each alone",
        columns=("GPU", "condition", ">ms", ">of the run"),
        rows=rows,
        notes=[f"Without a source: {'; '.join(CI_UNKNOWN)}."],
    )


def _split(found: Sequence[Found]) -> tuple[list[Found], list[Found]]:
    """Return the runs without pipelines and context parallelism, and those with."""
    plain = [one for one in found if one.run.case.cluster.pp * one.run.case.cluster.cp == 1]
    return plain, [one for one in found if one not in plain]


def _checks(b200: Sequence[Found], ci: Sequence[Found], korthikanti: Sequence[Found]) -> Table:
    plain, piped = _split(b200)
    errors = [abs(one.error) for one in plain]
    lines = _lines(plain).values()
    checks: list[Check] = [
        at_most("B200, iteration: mean error", 0.04, mean(errors)),
        at_most("B200, iteration: worst error", 0.08, max(errors)),
        at_most(
            "B200, ms a micro-batch: worst error", 0.04,
            max(abs(ours.slope / run.slope - 1) for run, ours in lines),
        ),
        at_most(
            "B200, the rest: worst error", 0.15,
            max(abs(ours.fixed / run.fixed - 1) for run, ours in lines),
        ),
        at_most("B200, memory: mean error", 0.01, mean(abs(one.memory_error) for one in plain)),
        at_most("B200, PP or CP: mean error", 0.05, mean(abs(one.error) for one in piped)),
        at_most(
            "B200, PP or CP, memory: mean error", 0.015,
            mean(abs(one.memory_error) for one in piped),
        ),
        *(at_most(f"{one.run.label}: iteration", 0.12, abs(one.error)) for one in ci),
        *(at_most(f"{one.run.label}: memory", 0.03, abs(one.memory_error)) for one in ci),
        *(at_most(f"{one.run.label}: iteration", 0.08, abs(one.error)) for one in korthikanti),
    ]  # fmt: skip
    return check_table("Published runs against their limits", checks, notes=[WHY_SHORT])


def _coverage(found: Sequence[Found]) -> Table:
    """Return whether each machine's mean factor lies in the interval that is stated for it.

    All rows of a table are one machine, whose factor moves them together.
    """
    checks = []
    for name in dict.fromkeys(one.run.case.profile.name for one in found):
        rows = [one for one in found if one.run.case.profile.name == name]
        factor = geometric_mean(one.run.measured_ms / one.ms for one in rows)
        low, high = (
            mean(ends) for ends in zip(*((one.low, one.high) for one in rows), strict=True)
        )
        checks.append(
            Check(
                what=f"{name}, {len(rows)} rows: measured / predicted",
                target=f"{low:.2f}–{high:.2f}", measured=f"{factor:.3f}",
                ok=low <= factor <= high,
            )
        )  # fmt: skip
        checks.append(at_most(f"{name}: half-width", HALF_WIDTH, (high - low) / 2))
    return check_table("Coverage: one factor a machine", checks)


def _forward() -> Table:
    """Return forward passes with multimem all-reduces and without any. vLLM's eager kernels."""
    rows = []
    for one in tokenweave_passes():
        with_them = _forward_ms(one.case, megatron(sequence_parallel=False))
        without = _forward_ms(one.case, NO_COMM)
        share = 1 - one.no_reduce_ms / one.baseline_ms
        rows.append((
            f"{one.tokens:,}", f"{one.baseline_ms:,.1f}", f"{with_them:,.1f}",
            f"{with_them / one.baseline_ms - 1:+.1%}", f"{one.no_reduce_ms:,.1f}",
            f"{without:,.1f}", f"{without / one.no_reduce_ms - 1:+.1%}", f"{share:.1%}",
            f"{1 - without / with_them:.1%}",
        ))  # fmt: skip
    return Table(
        title="Forward of Llama 70B at TP 8 on H100s, ms: with multimem all-reduces, and without",
        columns=(
            "tokens", ">measured", ">predicted", ">error", ">no AR", ">predicted", ">error",
            ">share of AR", ">predicted",
        ),
        rows=rows,
    )  # fmt: skip


def _forward_ms(case: Case, plan: SlicePlan) -> float:
    """Return the time until the last layer's forward ends."""
    found = played(case, plan)
    timeline = record(found.schedule, found.program)
    ops = zip(timeline.ops, timeline.start_ns, strict=True)
    return next(start for op, start in ops if op.role.startswith("head.")) * MS_PER_NS
