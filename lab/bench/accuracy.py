"""Errors of look-ups and of the contention law on what was withheld from them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profile_check import collective_error
from domino_tune.store.profiles import load_profile
from lab.bench.facts import errors, facts_dir, read_measured
from lab.fits.collectives import fit_collectives
from lab.fits.gemm import Shape, fit_gemm, leave_out_error
from lab.fits.unshipped import fitted_overlap
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmFit, GemmRow
from simulator.profile import GemmSection, Machine, Profile
from simulator.provenance import Provenance

H100_SMS: Final = 132
GEMM_LIMIT: Final = 0.025
ALL_REDUCE_LIMIT: Final = 0.03
EXTRAPOLATION_LIMIT: Final = 0.08
CONTENTION_LIMIT: Final = 0.03
MEASUREMENTS: Final = 70
KNOWN_M: Final = 2048
FAR_M: Final = 4096


def accuracy() -> list[Table]:
    """Return errors of look-ups in the imported H100 tables."""
    checks = [*_gemm_checks(), *_all_reduce_checks()]
    notes = [
        "withheld: whole (n, k) pairs in ten folds; MAPE of the table's interpolation.",
        "extrapolation: rows of m ≤ 2,048 imported; the law is fitted to the same rows alone.",
    ]
    return [check_table("Look-ups from the imported H100 tables", checks, notes)]


def contention() -> list[Table]:
    """Return errors of the law: fitted to all measurements, and with one GEMM shape left out."""
    overlapped = fitted_overlap(facts_dir())
    fit = overlapped.fit
    checks = [
        equal("measurements", MEASUREMENTS, overlapped.cells),
        at_most("MAPE, one GEMM shape left out at a time", CONTENTION_LIMIT,
                fit.leave_shape_out_error),
        at_most("MAPE, fitted once to all", CONTENTION_LIMIT, fit.error),
        reported("SMs that a CTA takes", f"{fit.sms_per_cta:g}"),
        reported("factors on GEMM time, all-reduce time",
                 f"{fit.compute_factor:g}, {fit.collective_factor:g}"),
        reported("constant of the experiment", f"{fit.constant_us:g} us"),
    ]  # fmt: skip
    return [check_table("Contention: overlap_432_1200MHz, 4 × A100, 64 MiB all-reduce", checks)]


def _gemm_checks() -> list[Check]:
    rows: tuple[GemmRow, ...] = read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    law = load_profile("h100-dgx").section("gemm").fits[0]
    small = [row for row in rows if row.m <= KNOWN_M]
    large = [row for row in rows if row.m == FAR_M]
    fit = fit_gemm(_shapes(small), H100_SMS)
    withheld = leave_out_error(_shapes(rows), fit=law, sm_count=H100_SMS)
    return [
        at_most(
            f"GEMM, {len(rows):,} rows imported into h100-dgx, (n, k) withheld",
            GEMM_LIMIT, withheld,
        ),
        at_most(
            "GEMM, the same rows imported into an empty profile", GEMM_LIMIT,
            leave_out_error(_shapes(rows)),
        ),
        at_most(
            f"GEMM, m ≤ {KNOWN_M:,} known, {len(large)} rows of m = {FAR_M:,}", EXTRAPOLATION_LIMIT,
            _extrapolation_error(small, large, (fit,)),
        ),
        reported(
            "the same without a law, trend from a roofline fitted to the rows",
            f"{100 * _extrapolation_error(small, large, ()):.2f}%",
        ),
    ]  # fmt: skip


def _extrapolation_error(
    known: Sequence[GemmRow], targets: Sequence[GemmRow], fits: tuple[GemmFit, ...]
) -> float:
    """Return the MAPE of look-ups of ``targets`` in an H100 profile that holds only ``known`` and
    its data sheet, as an import makes it."""
    machine = Machine(
        gpu="H100 SXM 80 GB", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=H100_SMS,
        peak_tflops={"bf16": 989.4}, memory_bandwidth_gb_s=3350.0, backend="nccl",
    )  # fmt: skip
    source = Provenance(kind="imported", source="published measurements")
    section = GemmSection(rows=tuple(known), fits=fits, provenance=source)
    bare = Profile(name="known", created="2025-06-18", machine=machine, gemm=section)
    return fmean(errors(bare.gemm_table(), targets))


def _all_reduce_checks() -> list[Check]:
    rows = read_measured("h100_nccl_nvlink.csv", "collectives-csv").rows
    reduces: list[CollectiveRow] = [row for row in rows if row.op == "all_reduce"]
    checks = [
        at_most(
            f"all-reduce, {len(reduces)} rows of 2, 4 and 8 GPUs, one left out at a time",
            ALL_REDUCE_LIMIT, collective_error(reduces),
        )
    ]  # fmt: skip
    for ranks in sorted({row.per_node for row in reduces}):
        mine = [row for row in reduces if row.per_node == ranks]
        fit = fit_collectives(mine)[0]
        checks.append(
            reported(
                f"  {ranks} GPUs: the table, and the law fitted to it",
                f"{100 * collective_error(mine):.2f}%, {100 * fit.error:.2f}%",
            )
        )
    return checks


def _shapes(rows: Sequence[GemmRow]) -> list[Shape]:
    return [(row.m, row.n, row.k, row.median_us) for row in rows]
