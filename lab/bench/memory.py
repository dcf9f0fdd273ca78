"""Predicted and published peaks, what allocators reserve for them, and chances to fit."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, stdev
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.store.profiles import load_profile
from lab.bench.runs import Run, b200_runs, ci_runs, megatron, rows
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
    """Return published peaks and their chances, what was reserved, and torchtitan's figures."""
    runs = [*b200_runs(), *ci_runs()]
    return [_peaks(runs), _reserved(), _checks(runs), _torchtitan()]


def _peaks(runs: list[Run]) -> Table:
    return Table(
        title="Peaks of jobs that ran, GiB a GPU",
        columns=(
            "profile", "run, micro-batches", ">published", ">predicted", ">error", ">reserved",
            ">usable", ">fits",
        ),
        rows=[_peak(run) for run in runs],
    )  # fmt: skip


def _peak(run: Run) -> tuple[str, ...]:
    assert run.gib is not None
    known, peak = run.case.memory, peak_bytes(run.case, run.plan)
    return (
        run.case.profile.name, run.label, f"{run.gib:.2f}", f"{peak / GIB:.2f}",
        f"{peak / GIB / run.gib - 1:+.2%}", f"{known.reserved_bytes(peak) / GIB:.1f}",
        f"{known.usable_bytes / GIB:.1f}", percent(known.chance(peak)),
    )  # fmt: skip


def _reserved() -> Table:
    return Table(
        title="Reserved for what was allocated, in public threads",
        columns=("family", "gpu", "job", ">allocated", ">reserved", ">ratio", "when", "source"),
        rows=[
            (
                one["family"], one["gpu"], one["job"], one["allocated_gib"], one["reserved_gib"],
                f"{_ratio(one):.3f}" if one["reserved_gib"] else "", one["when"], one["source"],
            )
            for one in rows("reserved_memory.csv")
        ],
        notes=[WHY_FLAKY],
    )  # fmt: skip


def _ratio(row: Line) -> float:
    return float(row["reserved_gib"]) / float(row["allocated_gib"])


def _checks(runs: list[Run]) -> Table:
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
    off = sorted({round(math.log(run.gib / _gib(run)), 4) for run in runs if run.gib})
    spread = math.sqrt(mean(one * one for one in off))
    chances = [run.case.memory.chance(peak_bytes(run.case, run.plan)) for run in runs]
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
    return check_table("Distributions of the chance to fit, beside their tables", checks)


def _logs(family: str) -> list[float]:
    return [
        math.log(_ratio(one))
        for one in rows("reserved_memory.csv")
        if one["family"] == family and one["when"] in ("free", "full")
    ]


def _gib(run: Run) -> float:
    return peak_bytes(run.case, run.plan) / GIB


def _torchtitan() -> Table:
    found = []
    for one in rows("torchtitan_reserved.csv"):
        case = _titan(one)
        peak = peak_bytes(case, megatron(sequence_parallel=case.cluster.tp > 1))
        reserved = case.memory.reserved_bytes(peak) / GIB
        told = float(one["reserved_gib"])
        label = f"{one['model']} {case.cluster.levels}, {one['seq']} tokens"
        found.append((
            label + ", AsyncTP" * (one["async_tp"] == "yes"), f"{told:.1f}", f"{peak / GIB:.1f}",
            f"{reserved:.1f}", f"{reserved / told - 1:+.0%}",
        ))  # fmt: skip
    return Table(
        title="torchtitan's reserved memory, GiB a GPU (float8, which is not simulated)",
        columns=("job", ">reserved", ">predicted peak", ">predicted reserved", ">error"),
        rows=found,
    )


def _titan(row: Line) -> Case:
    dp, tp, cp = (int(row[name]) for name in ("fsdp", "tp", "cp"))
    seq = int(row["seq"])
    return Case(
        model=replace(MODELS[row["model"]], max_position_embeddings=seq),
        workload=Workload(
            seq_length=seq, micro_batch_size=int(row["local_batch"]), recompute="full",
            data_parallel="fsdp", implementation=IMPLEMENTATIONS["torch"],
        ),
        cluster=ClusterSpec(tp=tp, cp=cp, dp=dp), profile=load_profile("h100-dgx"),
    )  # fmt: skip
