"""Predicted and published peaks, what allocators reserve for them, and chances to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.store.profiles import load_profile
from lab.bench.runs import Run, rows, runs
from lab.verdict import Check, at_least, check_table, reported
from simulator.case import Case
from simulator.implementation import IMPLEMENTATIONS
from simulator.peak import peak_bytes
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from simulator.units import GIB
from simulator.usable import FRAGMENTS, PREDICTED_SD, SURE, percent

STATED: Final = {"megatron": "megatron-te", "torch": "torch"}
"""Family of jobs in the table of reserved memory -> an implementation of that family."""
CLOSE: Final = 0.001
"""Largest difference between a stated number, which is rounded, and that of its table."""
FLAKY: Final = ("llama3-70b", ClusterSpec(tp=4, pp=4, vpp=5, dp=2))
WHY_FLAKY: Final = (
    "NVIDIA's recipe fails in 30 to 60 % of runs, at a peak that these distributions call safe: it "
    "multiplies in FP8, with casts and packed sequences. So chances are of jobs in 16 bits whose "
    "shapes stay the same from step to step."
)


def memory() -> list[Table]:
    """Return published peaks and their chances, their checks, and torchtitan's figures."""
    ran = runs("simumax", "ci")
    return [_peaks(ran), _checks(ran), _torchtitan()]


def _peaks(ran: Sequence[Run]) -> Table:
    return Table(
        title="Peaks of jobs that ran, GiB a GPU",
        columns=(
            "profile", "run, micro-batches", ">published", ">predicted", ">error", ">reserved",
            ">usable", ">fits",
        ),
        rows=[_peak(run) for run in ran],
    )  # fmt: skip


def _peak(run: Run) -> tuple[str, ...]:
    assert run.gib is not None
    known, peak = run.case.memory, peak_bytes(run.case, run.plan)
    return (
        run.case.profile.name, run.label, f"{run.gib:.2f}", f"{peak / GIB:.2f}",
        f"{peak / GIB / run.gib - 1:+.2%}", f"{known.reserved_bytes(peak) / GIB:.1f}",
        f"{known.usable_bytes / GIB:.1f}", percent(known.chance(peak)),
    )  # fmt: skip


def _ratio(row: Line) -> float:
    return float(row["reserved_gib"]) / float(row["allocated_gib"])


def _checks(ran: Sequence[Run]) -> Table:
    """Return whether the stated distributions are those of the tables, and the chances that they
    give jobs that ran and one that often fails.
    """
    checks = [
        Check(
            what=f"{family}: mean and deviation of log(reserved / allocated)",
            target=f"{FRAGMENTS[name].mean:.3f} ± {FRAGMENTS[name].sd:.3f}",
            measured=f"{mean(logs):.3f} ± {stdev(logs):.3f}",
            ok=abs(mean(logs) - FRAGMENTS[name].mean) < CLOSE
            and abs(stdev(logs) - FRAGMENTS[name].sd) < CLOSE,
        )
        for family, name in STATED.items()
        for logs in [_logs(family)]
    ]
    peaks = [peak_bytes(run.case, run.plan) for run in ran]
    off = sorted({
        round(math.log(run.gib * GIB / peak), 4)
        for run, peak in zip(ran, peaks, strict=True) if run.gib
    })  # fmt: skip
    spread = math.sqrt(mean(one * one for one in off))
    chances = [run.case.memory.chance(peak) for run, peak in zip(ran, peaks, strict=True)]
    model, cluster = FLAKY
    recipe = Case(
        model=MODELS[model], cluster=cluster, profile=load_profile("h100-dgx"),
        workload=Workload(
            seq_length=4096, micro_batch_size=1, grad_accumulation=16,
            implementation=IMPLEMENTATIONS["megatron-te"],
        ),
    )  # fmt: skip
    flaky = next(one for one in rows("reserved_memory.csv") if one["when"] == "fails")
    said = recipe.memory.chance(round(float(flaky["allocated_gib"]) * GIB))
    checks += [
        Check(
            what=f"log(published / predicted peak), {len(off)} layouts: root mean square",
            target=f"{PREDICTED_SD:.4f}", measured=f"{spread:.4f}",
            ok=abs(spread - PREDICTED_SD) < CLOSE,
        ),
        at_least("runs that ran: least chance to fit", SURE, min(chances)),
        reported("a recipe that runs in 40 to 70 % of tries", percent(said)),
    ]  # fmt: skip
    title = "Distributions of the chance to fit, beside their tables"
    return check_table(title, checks, [WHY_FLAKY])


def _logs(family: str) -> list[float]:
    return [
        math.log(_ratio(one))
        for one in rows("reserved_memory.csv")
        if one["family"] == family and one["when"] in ("free", "full")
    ]


def _torchtitan() -> Table:
    found = []
    for run in runs("torchtitan-memory"):
        assert run.gib is not None
        peak = peak_bytes(run.case, run.plan)
        reserved = run.case.memory.reserved_bytes(peak) / GIB
        found.append((
            run.label + ", AsyncTP" * (run.row["async_tp"] == "yes"), f"{run.gib:.1f}",
            f"{peak / GIB:.1f}", f"{reserved:.1f}", f"{reserved / run.gib - 1:+.0%}",
        ))  # fmt: skip
    return Table(
        title="torchtitan's reserved memory, GiB a GPU (float8, which is not simulated)",
        columns=("job", ">reserved", ">predicted peak", ">predicted reserved", ">error"),
        rows=found,
    )
