"""What a GPU's records say, a table a stage: power and clock, admission, kernels, plans that
ran.

They are read where the stages of ``scripts/gpu`` left them; measurements/README.md says which were
kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.facts import REPOSITORY
from lab.bench.gpu_kernels import first_table, fp8_tables, gap_tables, grouped_tables
from lab.bench.gpu_proof import proof_tables
from lab.fits.common import records
from lab.fits.contention import FULL_RATE
from lab.fits.power import stage_exponent, stage_law, with_collectives
from lab.gpu.cases import PLANS, PlayedPlan
from lab.verdict import SkippedError, at_most, check_table, reported
from simulator.case import Case
from simulator.power import PowerSection
from simulator.predict import played
from simulator.profile import Profile

Row = Mapping[str, Any]
NAME: Final = "h200-sxm"
MEASUREMENTS: Final = REPOSITORY / "measurements"
FOLDER: Final = "DOMINO_TUNE_GPU_RECORDS"
"""Names a folder of records; default: all in measurements/."""
CLOCK_LIMIT: Final = 0.03
CTAS: Final = 16


def gpu_records() -> Iterator[Table]:
    """Yield the tables of all stages that have records, GPU by GPU. Raise SkippedError where none
    has."""
    given, some = os.environ.get(FOLDER), False
    folders = [Path(given)] if given else sorted(MEASUREMENTS.glob("*/"))
    for where in folders:
        profile = load_profile(where.name if (MEASUREMENTS / where.name).exists() else NAME)
        for table in tables_of(where, profile):
            some = True
            yield replace(table, title=f"{profile.name}: {table.title}")
    if not some:
        raise SkippedError(f"no records of these stages in {folders}: scripts/gpu")


def tables_of(where: Path, profile: Profile) -> list[Table]:
    """Return the tables of a folder of records."""
    clocks, sustained, admission, queues, gaps, fp8, grouped, rehearsal, proof = (
        rows_of(where, stage)
        for stage in (
            "clocks", "sustained", "admission", "queues", "gaps", "fp8", "grouped", "rehearsal",
            "proof",
        )
    )  # fmt: skip
    return [
        *clock_tables(clocks, sustained, profile),
        *([admission_table(admission), first_table(admission)] if admission else []),
        *([queue_table(queues)] if queues else []),
        *(gap_tables(gaps) if gaps else []),
        *(fp8_tables(fp8) if fp8 else []),
        *(grouped_tables(grouped) if grouped else []),
        *([rehearsal_table(rehearsal)] if rehearsal else []),
        *proof_tables(proof),
    ]


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
        one, told = plans.get(row["case"]), "-"
        if one:
            power = played(case_of(one, replace(profile, power=law)), one.plan).power
            assert power is not None
            told, off = str(power.clock_mhz), abs(power.clock_mhz / row["clock_mhz"] - 1)
            checks.append(
                at_most(f"{one.name}, withheld", CLOCK_LIMIT, off) if one.withheld
                else reported(f"{one.name}, fitted", f"{off:.2%}")
            )  # fmt: skip
        step = (f"{row['step_ms']:.2f}", f"{row['step_j']:.2f}") if "step_ms" in row else ("-", "-")
        rows.append((
            row["case"], f"{row['clock_mhz']:.0f}", f"{row['power_w']:.0f}", *step, told,
        ))  # fmt: skip
    draws = (
        f"{one.family} {one.draw_w:.0f} W, elasticity {one.elasticity:.2f}" for one in law.families
    )
    measured = Table(
        title="Lasting loads: power and clock",
        columns=("load", ">MHz", ">W", ">ms a step", ">J a step", ">MHz by the law"),
        rows=rows,
        notes=(f"Draws above idle at boost: {'; '.join(draws)}. Exponent: {law.exponent:g}.",),
    )
    return [measured, check_table("Clocks by the law of the power cap", checks)]


def fitted_law(clocks: Sequence[Row], sustained: Sequence[Row], profile: Profile) -> PowerSection:
    """Return the law of these records, without the withheld plans: its exponent by the plan without
    communication, what collectives draw by one with it."""
    known = profile.power
    assert known is not None
    by_case = {row["case"]: row for row in clocks}
    fitted = [(one, by_case[one.name]) for one in PLANS if one.name in by_case and not one.withheld]
    for one, row in fitted:
        if not one.communicates:
            case = case_of(one, profile)
            exponent = stage_exponent(clocks, sustained, known, case, one.plan, row)
            known = replace(known, exponent=exponent)
            break
    law = stage_law(clocks, sustained, known)
    for one, row in fitted:
        if one.communicates:
            return with_collectives(law, case_of(one, profile), one.plan, row)
    return law


def case_of(one: PlayedPlan, profile: Profile) -> Case:
    """Return a played plan's step, as the simulator takes it."""
    cluster = replace(one.case.cluster, cuda_graph=True)
    return Case(model=one.case.model, workload=one.case.workload, cluster=cluster, profile=profile)


def admission_table(rows: Sequence[Row]) -> Table:
    """Return when 16 CTAs that move bytes were in, and what both then took."""
    made = []
    for row in rows:
        alone_ns, size = row["alone_ns"], " × ".join(f"{one:,}" for one in row["shape"])
        for cell in row["cells"]:
            if (cell["ctas"], cell["rate"]) == (CTAS, FULL_RATE):
                in_ns, gemms_ns = cell["all_in_ns"], cell["gemms_ns"]
                made.append((
                    row["kind"], size, str(row["margin"]), f"{alone_ns / 1e3:.1f}",
                    cell["arrival"], f"{in_ns / 1e3:.1f}", f"{in_ns / alone_ns:.2f}",
                    f"{(cell['end_ns'] - in_ns) / row['collective_ns']:.2f}",
                    f"{gemms_ns[0] / alone_ns:.2f}" if gemms_ns else "-",
                ))  # fmt: skip
    return Table(
        title=f"Collectives of {CTAS} CTAs that meet a GEMM",
        columns=(
            "kernel", "tokens × out × in", ">spares", ">alone, µs", "arrives", ">all in, µs",
            ">of the GEMM", ">collective", ">first GEMM",
        ),
        rows=made,
        notes=("The last two: how much longer than alone.",),
    )  # fmt: skip


def queue_table(rows: Sequence[Row]) -> Table:
    """Return what share of a row's collectives its GEMMs hid, by queues and way of launching."""
    return Table(
        title="Rows of GEMMs beside collectives that came before them",
        columns=(
            "queues", "launched", ">GEMMs, µs", ">collectives, µs", ">both, µs", ">overlapped",
        ),
        rows=[
            (
                row["queues"] or "usual", cell["name"],
                *(
                    f"{cell[key] / 1e3:,.0f}"
                    for key in ("gemms_ns", "collectives_ns", "together_ns")
                ),
                f"{cell['overlapped']:.2f}",
            )
            for row in rows for cell in row["cells"]
        ],
        notes=("1 is all that can be hidden, 0.4 the first GEMM behind a collective alone.",),
    )  # fmt: skip


def rehearsal_table(rows: Sequence[Row]) -> Table:
    """Return what a user's loop does in two ways or more, each with its time."""
    return Table(
        title="What surrounds a plan in a user's loop",
        columns=("what", "way", ">µs"),
        rows=[
            (row["case"], name.removesuffix("_ns"), f"{took / 1e3:,.0f}")
            for row in rows for name, took in row.items() if name.endswith("_ns")
        ],
    )  # fmt: skip
