"""What a GPU's records say, a table a stage: power and clock, admission, copies, other kernels.

They are read where the stages of ``scripts/gpu-profile`` left them; measurements/README.md says
which were kept.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from domino_tune.base.tables import Table
from domino_tune.measure.op_rows import signature_from
from domino_tune.measure.power_law import COMPUTE
from domino_tune.store.profiles import load_profile
from lab.bench.facts import REPOSITORY
from lab.fits.common import records
from lab.fits.power import stage_law, with_collectives
from lab.gpu.played_plans import LAYERS, PLANS, TP, PlayedPlan
from lab.verdict import Check, SkippedError, at_most, check_table, reported
from simulator.case import Case
from simulator.cost import CostModel
from simulator.power import PowerSection
from simulator.predict import played
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ClusterSpec

Row = Mapping[str, Any]
NAME: Final = "h200-sxm"
FOLDER: Final = "DOMINO_TUNE_GPU_RECORDS"
"""Names the folder of the records; default: this profile's in measurements/."""
CLOCK_LIMIT: Final = 0.03
CTAS: Final = 16
FULL_RATE: Final = 40.0


def gpu_records() -> list[Table]:
    """Return the tables of all stages that have records. Raise SkippedError where none has."""
    profile = load_profile(NAME)
    found = {
        stage: rows_of(folder(), stage)
        for stage in ("clocks", "sustained", "admission", "copies", "variants")
    }
    tables = [
        *clock_tables(found["clocks"], found["sustained"], profile),
        *([sustained_table(found["sustained"], profile)] if found["sustained"] else []),
        *(make(found[stage]) for stage, make in TABLES.items() if found[stage]),
    ]
    if found["variants"]:
        tables.append(variant_table(found["variants"], profile))
    if not tables:
        raise SkippedError(f"no records of these stages in {folder()}: scripts/gpu-profile")
    return tables


def folder() -> Path:
    """Return where the records are."""
    return Path(os.environ.get(FOLDER) or REPOSITORY / "measurements" / NAME)


def rows_of(where: Path, stage: str) -> list[dict[str, Any]]:
    """Return a stage's complete rows, packed or not; none where it did not run."""
    for name in (f"{stage}.jsonl", f"{stage}.jsonl.gz"):
        if (where / name).exists():
            return [row for row in records(where / name) if row.get("complete")]
    return []


# Power and clock ---------------------------------------------------------------------------------


def clock_tables(clocks: Sequence[Row], sustained: Sequence[Row], profile: Profile) -> list[Table]:
    """Return what was measured beside the law, and how far its clocks of withheld plans are off."""
    if not clocks or profile.power is None:
        return []
    law = fitted_law(clocks, sustained, profile)
    plans = {one.name: one for one in PLANS}
    rows, checks = [], []
    for row in clocks:
        one = plans.get(row["case"])
        clock_mhz = law_clock_mhz(one, law, profile) if one else None
        rows.append(_clock_row(row, clock_mhz))
        if one and clock_mhz:
            checks.append(_clock_check(one, clock_mhz / row["clock_mhz"] - 1))
    draws = (
        f"{one.family} {one.draw_w:.0f} W, elasticity {one.elasticity:.2f}" for one in law.families
    )
    measured = Table(
        title="Lasting loads: power and clock",
        columns=("load", ">MHz", ">W", ">ms a step", ">J a step", ">MHz by the law"),
        rows=rows,
        notes=(f"Draws above idle at boost: {'; '.join(draws)}.",),
    )
    return [measured, check_table("Clocks by the law of the power cap", checks)]


def fitted_law(clocks: Sequence[Row], sustained: Sequence[Row], profile: Profile) -> PowerSection:
    """Return the law of these records, without the withheld plans."""
    assert profile.power is not None
    law = stage_law(clocks, sustained, profile.power)
    by_case = {row["case"]: row for row in clocks}
    for one in PLANS:
        row = by_case.get(one.name)
        if row and not one.withheld and one.communicates:
            return with_collectives(law, case_of(one, profile), one.plan, row)
    return law


def case_of(one: PlayedPlan, profile: Profile) -> Case:
    """Return a played plan's step, as the simulator takes it."""
    model = replace(MODELS[one.preset], num_hidden_layers=LAYERS, attention_dropout=0.0)
    cluster = ClusterSpec(tp=TP, cuda_graph=True)
    return Case(model=model, workload=one.workload, cluster=cluster, profile=profile)


def law_clock_mhz(one: PlayedPlan, law: PowerSection, profile: Profile) -> int:
    """Return the clock that the law gives a plan."""
    power = played(case_of(one, replace(profile, power=law)), one.plan).power
    assert power is not None
    return power.clock_mhz


def _clock_row(row: Row, clock_mhz: int | None) -> tuple[str, ...]:
    step = (f"{row['step_ms']:.2f}", f"{row['step_j']:.2f}") if "step_ms" in row else ("-", "-")
    told = "-" if clock_mhz is None else str(clock_mhz)
    return row["case"], f"{row['clock_mhz']:.0f}", f"{row['power_w']:.0f}", *step, told


def _clock_check(one: PlayedPlan, off: float) -> Check:
    if one.withheld:
        return at_most(f"{one.name}, withheld", CLOCK_LIMIT, abs(off))
    return reported(f"{one.name}, fitted", f"{abs(off):.2%}")


def sustained_table(rows: Sequence[Row], profile: Profile) -> Table:
    """Return each family's times at a long run's clock over those of the profile's bursts."""
    bursts = {
        row.signature: row.median_us for kind in COMPUTE for row in profile.section(kind).rows
    }
    ratios: dict[str, list[float]] = {kind: [] for kind in COMPUTE}
    for row in rows:
        for op in row["ops"]:
            signature = signature_from(op["signature"])
            if signature in bursts:
                ratios[signature.kind].append(op["median_us"] / bursts[signature])
    clocks = [row["clock_mhz"] for row in rows]
    return Table(
        title="Ops at the clock of a long run: times over those of bursts",
        columns=("ops", ">signatures", ">10 %", ">median", ">90 %", ">elasticity"),
        rows=[
            (kind, str(len(found)), *_deciles(found), _elasticity(rows, kind))
            for kind, found in ratios.items()
            if found
        ],
        notes=(f"Clocks: {min(clocks):.0f} to {max(clocks):.0f} MHz.",),
    )  # fmt: skip


def _deciles(found: Sequence[float]) -> tuple[str, str, str]:
    low, middle, high = np.quantile(found, (0.1, 0.5, 0.9))
    return f"{low:.2f}", f"{middle:.2f}", f"{high:.2f}"


def _elasticity(rows: Iterable[Row], kind: str) -> str:
    found = [row["elasticity"][kind] for row in rows if kind in row["elasticity"]]
    return f"{statistics.median(found):.2f}" if found else "-"


# Admission and copies ----------------------------------------------------------------------------


def admission_table(rows: Sequence[Row]) -> Table:
    """Return when 16 CTAs that move bytes were in, and what both then took."""
    made = []
    for row in rows:
        for cell in row["cells"]:
            if cell["ctas"] == CTAS and cell["rate"] == FULL_RATE:
                made.append(_admission_row(row, cell))
    return Table(
        title=f"Collectives of {CTAS} CTAs that meet a GEMM",
        columns=(
            "kernel", "tokens × out × in", ">spares", ">alone, µs", "arrives", ">all in, µs",
            ">of the GEMM", ">collective", ">first GEMM",
        ),
        rows=made,
        notes=("The last two: how much longer than alone.",),
    )  # fmt: skip


def _admission_row(row: Row, cell: Row) -> tuple[str, ...]:
    alone_ns, lasted_ns = row["alone_ns"], cell["end_ns"] - cell["all_in_ns"]
    first = f"{cell['gemms_ns'][0] / alone_ns:.2f}" if cell["gemms_ns"] else "-"
    return (
        row["kind"], " × ".join(f"{size:,}" for size in row["shape"]), str(row["margin"]),
        f"{alone_ns / 1e3:.1f}", cell["arrival"], f"{cell['all_in_ns'] / 1e3:.1f}",
        f"{cell['all_in_ns'] / alone_ns:.2f}", f"{lasted_ns / row['collective_ns']:.2f}",
        first,
    )  # fmt: skip


def copies_table(rows: Sequence[Row]) -> Table:
    """Return what copies cost the ops of each family, and these the copies: medians over ops."""
    cells: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for row in rows:
        for cell in row["cells"]:
            if cell["op_mean_ns"] and cell["collective_ns"]:
                key = row["family"], cell["way"], cell["bytes"]
                op = cell["op_mean_ns"] / row["alone_ns"]
                cells.setdefault(key, []).append(
                    (op, cell["collective_ns"] / cell["copy_alone_ns"])
                )
    return Table(
        title="Copies beside compute: how much longer than alone, medians",
        columns=("ops", "copies", ">MiB", ">ops, number", ">op", ">copy"),
        rows=[
            (family, way, f"{size >> 20}", str(len(found)), *(
                f"{statistics.median(column):.3f}" for column in zip(*found, strict=True)
            ))
            for (family, way, size), found in cells.items()
        ],
    )  # fmt: skip


TABLES: Final = {"admission": admission_table, "copies": copies_table}


# Other kernels -----------------------------------------------------------------------------------


def variant_table(rows: Iterable[Row], profile: Profile) -> Table:
    """Return each variant's median over signatures, measured over looked up."""
    cost, found = CostModel(profile), dict[str, list[float]]()
    for row in rows:
        for op in row["ops"]:
            signature = signature_from(op["signature"])
            name = getattr(signature, "name", signature.kind)
            told_us = cost.duration_ns(signature) / 1e3
            found.setdefault(name, []).append(op["median_us"] / told_us)
    return Table(
        title="Other frameworks' kernels: measured over what the profile says",
        columns=("op", ">signatures", ">least", ">median", ">most"),
        rows=[
            (name, str(len(ratios)), f"{min(ratios):.2f}", f"{statistics.median(ratios):.2f}",
             f"{max(ratios):.2f}")
            for name, ratios in sorted(found.items())
        ],
    )  # fmt: skip
