"""Predicted and published peaks, what allocators reserve for them, and chances to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.runs import Run, rows, runs
from lab.verdict import Check, at_least, check_table, reported, table
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
    return [
        table(
            "Peaks of jobs that ran, GiB a GPU",
            "profile|run, micro-batches|>published|>predicted|>error|>reserved|>usable|>fits",
            map(_peak, ran),
        ),
        _checks(ran), _torchtitan(),
    ]  # fmt: skip


def _peak(run: Run) -> tuple[str, ...]:
    assert run.gib is not None
    known, peak = run.case.memory, peak_bytes(run.case, run.plan)
    return (
        run.case.profile.name, run.label, f"{run.gib:.2f}", f"{peak / GIB:.2f}",
        f"{peak / GIB / run.gib - 1:+.2%}", f"{known.reserved_bytes(peak) / GIB:.1f}",
        f"{known.usable_bytes / GIB:.1f}", percent(known.chance(peak)),
    )  # fmt: skip


def _checks(ran: Sequence[Run]) -> Table:
    """Return whether the stated distributions are those of the tables, and the chances that they
    give jobs that ran and one that often fails."""
    checks, reserved = [], rows("reserved_memory.csv")
    for family, name in STATED.items():
        logs = [
            math.log(float(one["reserved_gib"]) / float(one["allocated_gib"]))
            for one in reserved if one["family"] == family and one["when"] in ("free", "full")
        ]  # fmt: skip
        told, found = (FRAGMENTS[name].mean, FRAGMENTS[name].sd), (mean(logs), stdev(logs))
        near = all(abs(a - b) < CLOSE for a, b in zip(told, found, strict=True))
        what = f"{family}: mean and deviation of log(reserved / allocated)"
        stated, measured = ("{:.3f} ± {:.3f}".format(*one) for one in (told, found))
        checks.append(Check(what, stated, measured, near))
    peaks = [(run, peak_bytes(run.case, run.plan)) for run in ran]
    off = {round(math.log(run.gib * GIB / peak), 4) for run, peak in peaks if run.gib}
    spread = math.sqrt(mean(one * one for one in sorted(off)))
    what = f"log(published / predicted peak), {len(off)} layouts: root mean square"
    near = abs(spread - PREDICTED_SD) < CLOSE
    least = min(run.case.memory.chance(peak) for run, peak in peaks)
    flaky = next(one for one in reserved if one["when"] == "fails")
    said = _recipe().memory.chance(round(float(flaky["allocated_gib"]) * GIB))
    checks += [
        Check(what, f"{PREDICTED_SD:.4f}", f"{spread:.4f}", near),
        at_least("runs that ran: least chance to fit", SURE, least),
        reported("a recipe that runs in 40 to 70 % of tries", percent(said)),
    ]
    title = "Distributions of the chance to fit, beside their tables"
    return check_table(title, checks, WHY_FLAKY)


def _recipe() -> Case:
    work = Workload(
        seq_length=4096, micro_batch_size=1, grad_accumulation=16,
        implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    model, cluster = MODELS[FLAKY[0]], FLAKY[1]
    return Case(model=model, cluster=cluster, profile=load_profile("h100-dgx"), workload=work)


def _torchtitan() -> Table:
    lines = []
    for run in runs("torchtitan-memory"):
        assert run.gib is not None
        peak = peak_bytes(run.case, run.plan)
        reserved = run.case.memory.reserved_bytes(peak) / GIB
        lines.append((
            run.label + ", AsyncTP" * (run.row["async_tp"] == "yes"), f"{run.gib:.1f}",
            f"{peak / GIB:.1f}", f"{reserved:.1f}", f"{reserved / run.gib - 1:+.0%}",
        ))  # fmt: skip
    return table(
        "torchtitan's reserved memory, GiB a GPU (float8, which is not simulated)",
        "job|>reserved|>predicted peak|>predicted reserved|>error", lines,
    )  # fmt: skip
