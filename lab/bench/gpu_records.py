"""What a GPU's records say, a table a stage: power and clock, admission, plans that ran, kernels.
They are read where the stages of ``scripts/gpu`` left them; measurements/README.md says which were
kept."""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.common import SOURCES, mean_off, shown
from lab.fidelity import scores
from lab.fidelity.scores import KINDS, detail, score, setting_from
from lab.fits.common import records
from lab.fits.power import stage_exponent, stage_law, with_collectives
from lab.gpu.cases import PLANS, PlayedPlan
from lab.gpu.proof import SHAPES, WAYS, ProofCase, measured_profile, proof_case
from lab.verdict import Check, SkippedError, at_least, at_most, check_table, reported, table
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.predict import played
from simulator.profile import Profile

Row = Mapping[str, Any]
NAME: Final = "h200-sxm"
FOLDER: Final = "DOMINO_TUNE_GPU_RECORDS"
"""Names a folder of records; default: all in measurements/."""


def gpu_records() -> Iterator[Table]:
    """Yield the tables of all stages with records, by GPU. Raise SkippedError where none has."""
    given, some = os.environ.get(FOLDER), False
    folders = [Path(given)] if given else sorted(SOURCES.measurements.glob("*/"))
    for where in folders:
        profile = load_profile(where.name if (SOURCES.measurements / where.name).exists() else NAME)
        for found in tables_of(where, profile):
            some = True
            yield replace(found, title=f"{profile.name}: {found.title}")
    if not some:
        raise SkippedError(f"no records of these stages in {folders}: scripts/gpu")


def tables_of(where: Path, profile: Profile) -> Iterator[Table]:
    """Yield the tables of a folder of records."""
    yield from clock_tables(rows_of(where, "clocks"), rows_of(where, "sustained"), profile)
    for stage, tables in (
        ("admission", first_tables), ("gaps", gap_tables), ("fp8", fp8_tables),
        ("grouped", grouped_tables), ("rehearsal", rehearsal_tables), ("proof", proof_tables),
    ):  # fmt: skip
        if rows := rows_of(where, stage):
            yield from tables(rows)


def rows_of(where: Path, stage: str) -> list[dict[str, Any]]:
    """Return a stage's complete rows, packed or not; none where it did not run."""
    for name in (f"{stage}.jsonl", f"{stage}.jsonl.gz"):
        if (where / name).exists():
            return [row for row in records(where / name) if row.get("complete")]
    return []


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
                at_most(f"{one.name}, withheld", 0.03, off) if one.withheld
                else reported(f"{one.name}, fitted", f"{off:.2%}")
            )  # fmt: skip
        step = "{step_ms:.2f}|{step_j:.2f}".format(**row) if "step_ms" in row else "-|-"
        lines.append((row, step, told))
    draws = (f"{x.family} {x.draw_w:.0f} W, elasticity {x.elasticity:.2f}" for x in law.families)
    measured = shown("clocks", lines, draws="; ".join(draws), exponent=law.exponent)
    return [measured, check_table("Clocks by the law of the power cap", checks)]


def fitted_law(clocks: Sequence[Row], sustained: Sequence[Row], profile: Profile) -> PowerSection:
    """Return the law of these records without withheld plans: the exponent by the plan that does
    not communicate."""
    known: PowerSection = profile.section("power")
    by_case = {row["case"]: row for row in clocks}
    fitted = [(one, by_case[one.name]) for one in PLANS if one.name in by_case and not one.withheld]
    for one, row in (both for both in fitted if not both[0].communicates):
        how = case_of(one, profile), one.plan, row
        known = replace(known, exponent=stage_exponent(clocks, sustained, known, *how))
    law = stage_law(clocks, sustained, known)
    for one, row in fitted:
        if one.communicates:
            return with_collectives(law, case_of(one, profile), one.plan, row)
    return law


def case_of(one: PlayedPlan, profile: Profile) -> Case:
    """Return a played plan's step, as the simulator takes it."""
    cluster = replace(one.case.cluster, cuda_graph=True)
    return Case(model=one.case.model, workload=one.case.workload, cluster=cluster, profile=profile)


def rehearsal_tables(rows: Sequence[Row]) -> list[Table]:
    """Return what a user's loop does in two ways or more, each with its time."""
    took = ((row["case"], *of) for row in rows for of in row.items() if of[0].endswith("_ns"))
    lines = ((case, name.removesuffix("_ns"), f"{ns / 1e3:,.0f}") for case, name, ns in took)
    return [table("What surrounds a plan in a user's loop", "what|way|>µs", lines)]


def proof_tables(rows: Sequence[Row]) -> list[Table]:
    """Return targets, times and predictions of then and today, of ways to launch still in use."""
    ways = [proof_case(*shape, *way) for shape in SHAPES for way in WAYS]
    names = {f"plans {one.ops.name} {one.launch}" for one in ways}
    settings = [setting_from(row["setting"]) for row in rows if row["case"] in names]
    if not settings:
        return []
    total, ran, anew = score(settings), {row["case"]: row for row in rows}, list[Check]()
    errors = [*scores.errors_of(total, "GPU"), *scores.worst_errors(total)]
    cells = reported("cells (plans of a model, batch and way to launch)", str(total.cells))
    checks = [cells, *errors, *scores.choice_checks(total, 0.01)]
    for way in WAYS:
        cases = [proof_case(*shape, *way) for shape in SHAPES]
        off = [error for case in cases for error in _errors(ran, case)]
        if off:
            name = f"{cases[0].launch}, {len(off)} plans: mean error"
            span = f"{min(off):+.1%}, {max(off):+.1%}"
            anew += [at_most(name, 0.03, mean_off(off)), reported("  from, to", span)]
    return [shown("proof", checks), *detail(settings), shown("anew", anew)]


def _errors(ran: Mapping[str, Row], proof: ProofCase) -> Iterator[float]:
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


COPY: Final = "copy bf16"
GEMMS: Final = ("forward", "dgrad", "wgrad", "one forward", "one dgrad")


def _size(shape: Iterable[int]) -> str:
    return " × ".join(f"{one:,}" for one in shape)


def gap_tables(rows: Sequence[Row]) -> list[Table]:
    """Return chains of one kernel, then steps: whole, the sum of their ops, and the gaps."""
    keys = ("kernel_ns", "graph_ns", "launch_ns")
    chains = [
        (name, *(f"{one[key] / 1e3:.2f}" for key in keys), f"{one['gap_ns']:.0f}")
        for row in rows for name, one in row.get("chains", {}).items()
    ]  # fmt: skip
    steps = []
    for row in rows:
        if kernels := row.get("graph_kernels"):
            gaps = [after[0] - before[0] - before[1] for before, after in pairwise(kernels)]
            middle, long = statistics.median(gaps), sum(gap > 2000 for gap in gaps)
            sums = sum(kernel[1] for kernel in kernels) / 1e3, sum(gaps) / 1e3
            steps.append((row, len(kernels), *sums, middle, long, sum(row["by_kind_us"].values())))
    return [shown("chains", chains), shown("steps", steps)]


def fp8_tables(rows: Sequence[Row]) -> list[Table]:
    """Return lasting loads, GEMMs by recipe, and casts against a copy."""
    gemms = [row for row in rows if row["case"].startswith("gemms ")]
    names = list(dict.fromkeys(name for row in gemms for name in row["ns"]))
    lasting = [
        (row["case"].removeprefix("lasting "), f"{row['clock_mhz']:,.0f}", f"{row['power_w']:.0f}",
         *(_tflops(row["shape"], row[key] / row["calls"]) for key in ("lasting_ns", "first_ns")))
        for row in rows if "lasting_ns" in row
    ]  # fmt: skip
    rates = [
        (_size(row["shape"]), *(_tflops(row["shape"], row["ns"].get(name)) for name in names))
        for row in gemms
    ]
    casts = _cast_tables([row for row in rows if "casts" in row])
    return [shown("lasting", lasting), shown("recipes", rates, names="|>".join(names)), *casts]


def _tflops(shape: Sequence[int], took_ns: float | None) -> str:
    return f"{2 * math.prod(shape) / took_ns / 1e3:.0f}" if took_ns else "-"


def _cast_tables(rows: Sequence[Row]) -> list[Table]:
    names = list(dict.fromkeys(name for row in rows for name in row["casts"]))
    shares: dict[str, list[float]] = defaultdict(list)
    lines = []
    for row in rows:
        rates = {name: one["bytes"] / one["ns"] for name, one in row["casts"].items()}
        lines.append((_size(row["shape"]), *(f"{rates[name]:,.0f}" for name in names)))
        for name in names:
            if row["casts"][COPY]["bytes"] > 100e6 and name != COPY:
                shares[name].append(rates[name] / rates[COPY])
    checks = (
        at_least(name, 0.85, min(found)) if name.startswith("cast ") or name == "cast"
        else reported(name, f"{min(found):.0%}") for name, found in shares.items()
    )  # fmt: skip
    title = "Least share of a copy's bytes a second, above 100 MB"
    return [shown("casts", lines, names="|>".join(names)), check_table(title, checks)]


def grouped_tables(rows: Iterable[Row]) -> list[Table]:
    """Return grouped GEMMs by rows an expert, and permutations."""
    cells, ways = [], []
    for row in rows:
        for cell in row.get("cells", ()):
            each, shape = cell["rows"], (sum(cell["rows"]), cell["out"], cell["in"])
            cells.append((
                row["model"], cell["layer"], len(each), f"{shape[0] / len(each):,.0f}",
                "alike" if cell["even"] else f"{min(each):,}–{max(each):,}",
                *(_tflops(shape, cell["ns"].get(name)) for name in GEMMS),
            ))  # fmt: skip
        for name, one in row.get("ways", {}).items():
            rate = f"{one['bytes'] / one['ns']:,.0f}" if one["bytes"] else "-"
            ways.append((row["model"], name, f"{one['ns'] / 1e3:.1f}", rate))
    return [shown("grouped", cells), shown("permutations", ways)]


def first_tables(rows: Iterable[Row]) -> list[Table]:
    """Return by how much a GEMM is longer whose SMs a collective already has, by its CTAs."""
    lines = []
    for row in rows:
        cells = [cell for cell in row["cells"] if cell["arrival"] == "before"]
        if row["kind"] != "spared" and cells:
            longer = (cell["gemms_ns"][0] - row["alone_ns"] for cell in cells)
            times = (f"{one / 1e3:.1f}" for one in (row["alone_ns"], *longer))
            lines.append((row["kind"], _size(row["shape"]), *times))
    return [shown("after", lines)]
