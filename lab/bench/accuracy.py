"""Errors of look-ups: GEMMs and all-reduces withheld, GEMMs extrapolated, and bundled fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profile_check import check_profile, collective_error
from domino_tune.store.profiles import load_profile
from lab.bench.facts import H100_SMS, bare_h100, gemm_section, read_measured
from lab.fits.collectives import fit_collectives
from lab.fits.gemm import Shape, fit_gemm, leave_out_error
from lab.verdict import Check, at_most, check_table, reported
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmFit, GemmRow
from simulator.ops import Gemm

GEMM_LIMIT: Final = 0.025
ALL_REDUCE_LIMIT: Final = 0.03
EXTRAPOLATION_LIMIT: Final = 0.08
KNOWN_M: Final = 2048
FAR_M: Final = 4096
BUNDLED: Final = ("h100-dgx", "a100-sxm")


def accuracy() -> list[Table]:
    """Return errors of look-ups in the imported H100 tables, and those the bundled fits state."""
    checks = [*_gemm_checks(), *_all_reduce_checks()]
    notes = [
        "withheld: whole (n, k) pairs in ten folds; MAPE of the table's interpolation.",
        "extrapolation: rows of m ≤ 2,048 imported; the law is fitted to the same rows alone.",
    ]
    return [check_table("Look-ups from the imported H100 tables", checks, notes), _bundled()]


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
    """Return the MAPE of look-ups of ``targets`` in a profile that holds only ``known``."""
    profile = replace(bare_h100("known"), gemm=gemm_section(tuple(known), fits))
    table = profile.gemm_table()
    errors = [
        abs(table.estimate(Gemm(row.m, row.n, row.k)).duration_us / row.median_us - 1)
        for row in targets
    ]
    return sum(errors) / len(errors)


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


def _bundled() -> Table:
    """Return the error that each section of the bundled profiles states."""
    rows = [
        (name, check.section, check.kind,
         f"{100 * check.error:.2g}%" if check.error else "not known")
        for name in BUNDLED
        for check in check_profile(load_profile(name))
    ]  # fmt: skip
    return Table(
        title="Errors that the bundled profiles state",
        columns=("profile", "section", "numbers are", ">stated error"),
        rows=rows,
    )


def _shapes(rows: Sequence[GemmRow]) -> list[Shape]:
    return [(row.m, row.n, row.k, row.median_us) for row in rows]
