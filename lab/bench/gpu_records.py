"""What a GPU's records say, a table a stage: power and clock, admission, plans that ran; kernels by
themselves are in ``gpu_kernels``.

They are read where the stages of ``scripts/gpu`` left them; measurements/README.md says which were
kept.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.common import SOURCES
from lab.bench.gpu_kernels import first_table, fp8_tables, gap_tables, grouped_tables
from lab.fidelity.page import choice_checks, detail, worst_errors
from lab.fidelity.scores import Setting, score, setting_from
from lab.fidelity.settings import KINDS
from lab.fits.common import records
from lab.fits.contention import FULL_RATE
from lab.fits.power import stage_exponent, stage_law, with_collectives
from lab.gpu.cases import PLANS, PlayedPlan
from lab.gpu.proof import SHAPES, WAYS, ProofCase, measured_profile, proof_case
from lab.verdict import Check, SkippedError, at_most, check_table, reported, table
from simulator.case import Case
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.predict import played
from simulator.profile import Profile
from simulator.units import MS_PER_NS

Row = Mapping[str, Any]
NAME: Final = "h200-sxm"
FOLDER: Final = "DOMINO_TUNE_GPU_RECORDS"
"""Names a folder of records; default: all in measurements/."""
CLOCK_LIMIT: Final = 0.03
CTAS: Final = 16
ERROR: Final = 0.03
REGRET: Final = 0.01
EMULATED: Final = (
    "Some layers with the true shards of one rank. Collectives are emulated: their durations are "
    "the profile's and were not measured. Ops and launches were measured on this GPU before any "
    "plan ran. link: the way to launch ops. Other columns: results/fidelity.md."
)
ANEW: Final = (
    "Of the plans that ran, those whose cut has a name, by today's laws, planned again by them."
)


def gpu_records() -> Iterator[Table]:
    """Yield the tables of all stages that have records, GPU by GPU. Raise SkippedError where none
    has."""
    given, some = os.environ.get(FOLDER), False
    folders = [Path(given)] if given else sorted(SOURCES.measurements.glob("*/"))
    for where in folders:
        known = (SOURCES.measurements / where.name).exists()
        profile = load_profile(where.name if known else NAME)
        for found in tables_of(where, profile):
            some = True
            yield replace(found, title=f"{profile.name}: {found.title}")
    if not some:
        raise SkippedError(f"no records of these stages in {folders}: scripts/gpu")


def tables_of(where: Path, profile: Profile) -> Iterator[Table]:
    """Yield the tables of a folder of records."""
    yield from clock_tables(rows_of(where, "clocks"), rows_of(where, "sustained"), profile)
    for stage, tables in (
        ("admission", lambda rows: [admission_table(rows), first_table(rows)]),
        ("queues", lambda rows: [queue_table(rows)]), ("gaps", gap_tables), ("fp8", fp8_tables),
        ("grouped", grouped_tables), ("rehearsal", lambda rows: [rehearsal_table(rows)]),
        ("proof", proof_tables),
    ):  # fmt: skip
        if rows := rows_of(where, stage):
            yield from tables(rows)


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
    plans, lines, checks = {one.name: one for one in PLANS}, [], []
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
        kept = (f"{row['clock_mhz']:.0f}", f"{row['power_w']:.0f}")
        lines.append((row["case"], *kept, *step, told))
    draws = (f"{x.family} {x.draw_w:.0f} W, elasticity {x.elasticity:.2f}" for x in law.families)
    measured = table(
        "Lasting loads: power and clock", "load|>MHz|>W|>ms a step|>J a step|>MHz by the law",
        lines, f"Draws above idle at boost: {'; '.join(draws)}. Exponent: {law.exponent:g}.",
    )  # fmt: skip
    return [measured, check_table("Clocks by the law of the power cap", checks)]


def fitted_law(clocks: Sequence[Row], sustained: Sequence[Row], profile: Profile) -> PowerSection:
    """Return the law of these records, without the withheld plans: its exponent by the plan without
    communication, what collectives draw by one with it."""
    known: PowerSection = profile.section("power")
    by_case = {row["case"]: row for row in clocks}
    fitted = [(one, by_case[one.name]) for one in PLANS if one.name in by_case and not one.withheld]
    alone = next((both for both in fitted if not both[0].communicates), None)
    if alone:
        one, row = alone
        case = case_of(one, profile)
        exponent = stage_exponent(clocks, sustained, known, case, one.plan, row)
        known = replace(known, exponent=exponent)
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
    lines = []
    for row in rows:
        alone_ns, size = row["alone_ns"], " × ".join(f"{one:,}" for one in row["shape"])
        for cell in row["cells"]:
            if (cell["ctas"], cell["rate"]) == (CTAS, FULL_RATE):
                in_ns, gemms_ns = cell["all_in_ns"], cell["gemms_ns"]
                lines.append((
                    row["kind"], size, row["margin"], f"{alone_ns / 1e3:.1f}",
                    cell["arrival"], f"{in_ns / 1e3:.1f}", f"{in_ns / alone_ns:.2f}",
                    f"{(cell['end_ns'] - in_ns) / row['collective_ns']:.2f}",
                    f"{gemms_ns[0] / alone_ns:.2f}" if gemms_ns else "-",
                ))  # fmt: skip
    return table(
        f"Collectives of {CTAS} CTAs that meet a GEMM",
        "kernel|tokens × out × in|>spares|>alone, µs|arrives|>all in, µs|>of the GEMM|>collective"
        "|>first GEMM", lines, "The last two: how much longer than alone.",
    )  # fmt: skip


def queue_table(rows: Sequence[Row]) -> Table:
    """Return what share of a row's collectives its GEMMs hid, by queues and way of launching."""
    keys = ("gemms_ns", "collectives_ns", "together_ns")
    return table(
        "Rows of GEMMs beside collectives that came before them",
        "queues|launched|>GEMMs, µs|>collectives, µs|>both, µs|>overlapped",
        [
            (row["queues"] or "usual", cell["name"], *(f"{cell[key] / 1e3:,.0f}" for key in keys),
             f"{cell['overlapped']:.2f}")
            for row in rows for cell in row["cells"]
        ],
        "1 is all that can be hidden, 0.4 the first GEMM behind a collective alone.",
    )  # fmt: skip


def rehearsal_table(rows: Sequence[Row]) -> Table:
    """Return what a user's loop does in two ways or more, each with its time."""
    lines = [
        (row["case"], name.removesuffix("_ns"), f"{took / 1e3:,.0f}")
        for row in rows for name, took in row.items() if name.endswith("_ns")
    ]  # fmt: skip
    return table("What surrounds a plan in a user's loop", "what|way|>µs", lines)


# Plans that ran ----------------------------------------------------------------------------------


def proof_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the plans' targets and times, and predictions of today beside those of then, of ways
    to launch that the runtime still has."""
    ways = [proof_case(*shape, *way) for shape in SHAPES for way in WAYS]
    names = {f"plans {one.ops.name} {one.launch}" for one in ways}
    settings = [setting_from(row["setting"]) for row in rows if row["case"] in names]
    if not settings:
        return []
    return [check_table("Emulated on one GPU", proof_checks(settings), EMULATED),
            *detail(settings), predicted_anew(rows)]  # fmt: skip


def proof_checks(settings: Sequence[Setting]) -> list[Check]:
    """Return the targets beside the measured numbers."""
    total = score(settings)
    return [
        reported("cells (plans of a model, batch and way to launch)", str(total.cells)),
        reported("noise floor: the same plan in two launches", f"{total.noise:.2%}"),
        at_most("iteration time, mean absolute error", ERROR, total.error),
        reported("the same at the GPU's speed while plans ran", f"{total.steady_error:.2%}"),
        *worst_errors(total),
        *choice_checks(total, REGRET),
    ]


def predicted_anew(rows: Sequence[Row]) -> Table:
    """Return the errors of today's predictions, by way of launching."""
    ran = {row["case"]: row for row in rows}
    checks: list[Check] = []
    for way in WAYS:
        cases = [proof_case(*shape, *way) for shape in SHAPES]
        errors = [error for case in cases for error in _errors(ran, case)]
        if errors:
            name = f"{cases[0].launch}, {len(errors)} plans"
            checks += [
                at_most(f"{name}: mean error", ERROR, statistics.fmean(map(abs, errors))),
                reported("  from, to", f"{min(errors):+.1%}, {max(errors):+.1%}"),
            ]
    return check_table("The same plans by today's laws", checks, ANEW)


def _errors(ran: Mapping[str, Row], proof: ProofCase) -> Iterator[float]:
    """Yield how far off the predictions of the cuts that have names are, if they ran."""
    name = proof.ops.name
    row, ops = ran.get(f"plans {name} {proof.launch}"), ran.get(f"ops {name}")
    if row is None or ops is None:
        return
    case = proof.predicted_by(measured_profile([ops]))
    named = {plan.label: plan for plan in (*KINDS["plain"].plans.values(), SlicePlan())}
    for cell in setting_from(row["setting"]).cells:
        if cell.label in named:
            ms = played(case, named[cell.label]).totals.makespan_ns * MS_PER_NS
            yield ms / statistics.median(cell.first) - 1
