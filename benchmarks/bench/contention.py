"""Contention: iterations of a GEMM beside an all-reduce, each GEMM shape left out in turn."""

from __future__ import annotations

from typing import Final

from benchmarks.bench.facts import facts_dir
from benchmarks.bench.verdict import Check, at_most, check_table, told
from domino_tune.base.tables import Table
from domino_tune.measure.fits.parts import overlap_fit

LIMIT: Final = 0.03
CELLS: Final = 70


def contention() -> list[Table]:
    """The law fitted once to all cells, and to all shapes but the one predicted."""
    fit, cells = overlap_fit(facts_dir())
    checks = [
        Check(what="cells", target=str(CELLS), measured=str(cells), ok=cells == CELLS),
        at_most("MAPE, one GEMM shape left out at a time", LIMIT, fit.leave_shape_out_error),
        at_most("MAPE, fitted once to all cells", LIMIT, fit.error),
        told("SMs that a CTA takes", f"{fit.sms_per_cta:g}"),
        told("GEMM slows besides by, all-reduce by",
             f"{fit.compute_factor:g}, {fit.collective_factor:g}"),
        told("constant of the experiment", f"{fit.constant_us:g} us"),
    ]  # fmt: skip
    return [check_table("Contention: overlap_432_1200MHz, 4 × A100, 64 MiB all-reduce", checks)]
