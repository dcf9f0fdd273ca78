"""Errors of look-ups and of the contention law on what was withheld from them."""

from __future__ import annotations

from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profile_check import collective_error
from domino_tune.store.profiles import load_profile
from lab.bench.facts import facts_dir, read_measured
from lab.fits.collectives import fit_collectives
from lab.fits.gemm import leave_out_error
from lab.fits.unshipped import fitted_overlap
from lab.verdict import Check, at_most, check_table, equal, reported
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmRow

GEMM_LIMIT: Final = 0.025
ALL_REDUCE_LIMIT: Final = 0.03
CONTENTION_LIMIT: Final = 0.03
MEASUREMENTS: Final = 70


def accuracy() -> list[Table]:
    """Return errors of look-ups in the imported H100 tables."""
    checks = [_gemm_check(), *_all_reduce_checks()]
    notes = ["withheld: whole (n, k) pairs in ten folds; MAPE of the table's interpolation."]
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


def _gemm_check() -> Check:
    rows: tuple[GemmRow, ...] = read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    profile = load_profile("h100-dgx")
    error = leave_out_error(
        [(row.m, row.n, row.k, row.median_us) for row in rows],
        fit=profile.section("gemm").fits[0], sm_count=profile.machine.sm_count,
    )  # fmt: skip
    what = f"GEMM, {len(rows):,} rows imported into h100-dgx, (n, k) withheld"
    return at_most(what, GEMM_LIMIT, error)


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
