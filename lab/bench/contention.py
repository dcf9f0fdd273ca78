"""Contention: GEMMs measured beside an all-reduce, each GEMM shape predicted from the others."""

from __future__ import annotations

from typing import Final

from domino_tune.base.tables import Table
from lab.bench.facts import facts_dir
from lab.fits.unshipped import fitted_overlap
from lab.verdict import Check, at_most, check_table, reported

LIMIT: Final = 0.03
MEASUREMENTS: Final = 70


def contention() -> list[Table]:
    """Return errors of the law: fitted to all measurements, and with one GEMM shape left out."""
    overlapped = fitted_overlap(facts_dir())
    fit, count = overlapped.fit, overlapped.cells
    checks = [
        Check(what="measurements", target=str(MEASUREMENTS), measured=str(count),
              ok=count == MEASUREMENTS),
        at_most("MAPE, one GEMM shape left out at a time", LIMIT, fit.leave_shape_out_error),
        at_most("MAPE, fitted once to all", LIMIT, fit.error),
        reported("SMs that a CTA takes", f"{fit.sms_per_cta:g}"),
        reported("factors on GEMM time, all-reduce time",
                 f"{fit.compute_factor:g}, {fit.collective_factor:g}"),
        reported("constant of the experiment", f"{fit.constant_us:g} us"),
    ]  # fmt: skip
    return [check_table("Contention: overlap_432_1200MHz, 4 × A100, 64 MiB all-reduce", checks)]
