"""How a collective gets onto a busy GPU, beside our H200's records: each op withheld.

There an emulated collective ran back to back beside one op, back to back too. The same two lanes
are played with the law that is fitted to all other ops.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from benchmarks.bench.baselines import case_of
from benchmarks.bench.facts import REPOSITORY
from benchmarks.verdict import Check, at_most, check_table, reported
from domino_tune.base.tables import Table
from domino_tune.measure.fits.beside import fit_beside
from domino_tune.measure.fits.h200 import (
    FILLING,
    SM_COUNT,
    beside_cells,
    emulated_factors,
    full_cells,
    records,
)
from domino_tune.store.profiles import load_profile
from simulator.contention import CollectiveFamily, ComputeFamily, Contention, ContentionFit
from simulator.implementation import LAUNCH_ORDERS
from simulator.ops import Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.program import WORK_UNIT, Loop, Program, Step
from simulator.record import record
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.units import MS_PER_NS

NAME: Final = "h200-sxm"
LIMIT: Final = 0.05
LONG_US: Final = 150.0
OPS: Final = 60
"""Ops of a loop that is played; its ends are left out."""


class Cell(NamedTuple):
    """Errors of one measured cell, relative: of the op and of the collective, as modelled and with
    a collective that starts at once."""

    family: str
    op_us: float
    op: float
    collective: float
    op_at_once: float
    collective_at_once: float


def admission() -> list[Table]:
    """Return the errors by family, and what each launch order does to a job."""
    return [_beside_records(), _launch_orders()]


def _beside_records() -> Table:
    rows = records(REPOSITORY / "measurements" / NAME / "contention.jsonl.gz")
    cells = list(_cells(rows))
    checks: list[Check] = []
    for family in ("gemm", "attention", "pointwise"):
        mine = [cell for cell in cells if cell.family == family]
        long = [cell for cell in mine if cell.op_us >= LONG_US]
        checks += [
            at_most(f"{family}, {len(mine)} cells: the op", LIMIT, _mean(c.op for c in mine)),
            at_most(f"{family}: the collective", LIMIT, _mean(c.collective for c in mine)),
            reported(
                f"  of {len(long)} ops of {LONG_US:g} us or more: the collective",
                f"{_mean(c.collective for c in long):.1%}" if long else "none",
            ),
            *(
                reported(f"  the {what}, if collectives started at once", f"{_mean(errors):.1%}")
                for what, errors in (
                    ("op", [c.op_at_once for c in mine]),
                    ("collective", [c.collective_at_once for c in mine]),
                )
            ),
        ]
    return check_table(
        "Op and collective beside each other (MAPE), each op withheld", checks,
        notes=[
            "Some GEMMs below 100 us leave SMs free and let a collective in at once: which ones, "
            "cuBLAS's choice of a kernel decides, which shapes do not tell."
        ],
    )  # fmt: skip


def _mean(errors: Any) -> float:
    return statistics.fmean(errors)


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[Cell]:
    fitted: dict[str, ContentionFit] = {}
    for row, cell in full_cells(rows):
        family, case = row["family"], row["case"]
        if case not in fitted:
            fitted[case] = _without(rows, family, case)
        errors = []
        for fills in (family in FILLING, False):
            law = replace(fitted[case].compute[0], fills=fills)
            op_ns, collective_ns = _played(row, cell, replace(fitted[case], compute=(law,)))
            errors += [
                abs(op_ns / cell["op_mean_ns"] - 1), abs(collective_ns / cell["collective_ns"] - 1)
            ]  # fmt: skip
        yield Cell(family, row["alone_again_ns"] / 1000, *errors)


def _without(rows: Sequence[Mapping[str, Any]], family: str, case: str) -> ContentionFit:
    """Return the law of ``family`` from all cells but those of ``case``."""
    known: ContentionFit = load_profile(NAME).section("contention").fit
    others = [row for row in rows if row["case"] != case]
    mine = [one for one in beside_cells(others) if one.family == family]
    factor = statistics.fmean(emulated_factors(others))
    return replace(
        known, compute=(fit_beside(mine, sm_count=SM_COUNT).law,),
        collective=replace(known.collective, factor=factor),
    )  # fmt: skip


def _played(
    row: Mapping[str, Any], cell: Mapping[str, Any], fit: ContentionFit
) -> tuple[float, float]:
    """Return the mean time of an op and of a collective in the middle of a long loop, in ns."""
    op_ns, collective_ns = round(row["alone_again_ns"]), round(cell["collective_alone_ns"])
    count = 1 + OPS * op_ns * 3 // collective_ns
    steps = (
        *(Step(TP, collective_ns * WORK_UNIT, 2, (), 0) for _ in range(count)),
        *(Step(COMPUTE, op_ns * WORK_UNIT, 1, (), 0, fills=fit.compute[0].fills)
          for _ in range(OPS)),
    )  # fmt: skip
    families = (
        None, ComputeFamily(row["family"], op_ns), CollectiveFamily(1, 8, ctas=cell["ctas"])
    )  # fmt: skip
    program = Program(
        root=Loop(body=steps), lanes=2, families=families, contention=Contention(fit), queue_depth=0
    )
    templates = tuple(
        OpTemplate("op", -1, Pointwise("copy", 0, 0), step.lane, 0, (), ()) for step in steps
    )
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),), value_bytes={})
    timeline = record(schedule, program)
    ends = {
        lane: [end for step, end in zip(steps, timeline.end_ns, strict=True) if step.lane == lane]
        for lane in (COMPUTE, TP)
    }
    whole = ends[COMPUTE][-1]
    done = [end for end in ends[TP] if end <= whole]
    return whole / OPS, done[-1] / len(done)


def _launch_orders() -> Table:
    rows = []
    for profile in ("h100-dgx", NAME):
        for name, plan in _plans().items():
            times = []
            for order in LAUNCH_ORDERS:
                case = case_of(profile, "gpt3-13b", 8)
                how = replace(case.workload.implementation, launch_order=order)
                workload = replace(case.workload, implementation=how)
                there = replace(case, workload=workload)
                times.append(predict(there, plan).makespan_ns * MS_PER_NS)
            rows.append((profile, name, *(f"{ms:.1f}" for ms in times)))
    return Table(
        title="GPT-3 13B at TP 8, 8 × 2,048: ms by launch order",
        columns=("profile", "plan", *(f">{order}" for order in LAUNCH_ORDERS)),
        rows=rows,
    )


def _plans() -> dict[str, SlicePlan]:
    return {
        "Megatron-LM with SP": replace(MEGATRON, sequence_parallel=True),
        "2 rows, greedy": SlicePlan(row_slices=2, sequence_parallel=True),
        "2 rows, inter": SlicePlan(order="inter", wgrad="eager", sequence_parallel=True),
        "4 rows, greedy": SlicePlan(row_slices=4, sequence_parallel=True),
    }
