"""The GEMM law on published rows of an H100: extrapolated, interpolated and held out."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from lab.fits.gemm import Shape, fit_gemm, heldout_error, leave_out_error
from simulator.lookup.gemm import GemmRow
from simulator.ops import Gemm
from tests.conftest import DATA
from tests.unit.simulator.lookup.gemm_shapes import SMS, table


def published(folder: Path, name: str) -> list[Shape]:
    with gzip.open(folder / name, "rt") as lines:
        return [
            (int(row["m"]), int(row["n"]), int(row["k"]), float(row["us"]))
            for row in csv.DictReader(lines)
        ]


def test_published_h100_rows_are_interpolated_and_extrapolated_as_promised() -> None:
    rows = published(DATA / "measured", "h100_gemm_bf16.csv.gz")
    early = [row for row in rows if row[0] <= 2048]
    fit = fit_gemm(early, SMS)
    assert fit.error <= 0.05
    assert leave_out_error(rows, fit=fit, sm_count=SMS) <= 0.025
    known = table(
        [
            GemmRow(m, n, k, "forward", "bf16", False, (0, 0, 0), us, 0.0, 1)
            for m, n, k, us in early
        ],
        [fit],
    )
    late = [row for row in rows if 2048 < row[0] <= 4096]
    errors = [abs(known.estimate(Gemm(*row[:3])).duration_us / row[3] - 1) for row in late]
    assert sum(errors) / len(errors) <= 0.08


def test_the_law_on_published_h100_rows_held_out() -> None:
    rows = published(DATA / "measured", "h100_gemm_bf16.csv.gz")
    assert heldout_error(rows, SMS) <= 0.04
