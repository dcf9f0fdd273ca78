"""Interpolation: exact where the law is, near the rows where it is not, pure in any order."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.lookup.gemm_law import Floats, RooflineLaw, make_law
from simulator.lookup.gemm_table import MAX_CURVES, GemmCurves, _thin
from tests.unit.simulator.lookup.gemm_shapes import PARAMS, SMS, law_rows

LAW = make_law("tiled", PARAMS, SMS)
TABLE = np.array([(row.m, row.n, row.k, row.median_us) for row in law_rows()])


def curves_of(table: Floats) -> GemmCurves:
    return GemmCurves(table[:, 0], table[:, 1], table[:, 2], table[:, 3], LAW)


def test_rows_on_the_law_change_nothing() -> None:
    curves = curves_of(TABLE)
    us, error = curves.predict(777, 3000, 1111)
    assert us == pytest.approx(LAW.parts(777, 3000, 1111).total_us)
    assert 0 < error < 0.05


def test_a_wavy_trend_is_learned_by_neighbours_in_k() -> None:
    m, n, k, us = TABLE.T
    bent = us * np.exp(0.2 * np.sin(np.log(n)))
    curves = GemmCurves(m, n, k, bent, LAW)
    expected = LAW.parts(1024, 2048, 3000).total_us * np.exp(0.2 * np.sin(np.log(2048)))
    assert curves.predict(1024, 2048, 3000)[0] == pytest.approx(expected, rel=0.02)


def test_error_grows_with_the_distance_from_rows() -> None:
    m, n, k, us = TABLE.T
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, len(us)))
    curves = GemmCurves(m, n, k, us * noise, LAW)
    errors = [curves.predict(1024, 2048, k)[1] for k in (2048, 3000, 65536)]
    assert errors == sorted(errors)
    assert errors[0] < errors[2]


def test_the_order_of_rows_changes_nothing() -> None:
    shuffled = TABLE[np.random.default_rng(1).permutation(len(TABLE))]
    shape = (300, 700, 900)
    assert curves_of(TABLE).predict(*shape) == curves_of(shuffled).predict(*shape)


def test_one_row_is_enough() -> None:
    law = RooflineLaw(fixed_us=0.0, flops_per_us=1e9, bytes_per_us=3e6)
    cube = np.array([512.0])
    curves = GemmCurves(cube, cube, cube, np.array([8.0]), law)
    us, error = curves.predict(512, 512, 512)
    assert us == pytest.approx(8.0)
    assert error > 0.02


def test_more_pairs_than_fit_are_thinned_evenly() -> None:
    n = np.arange(1.0, 2 * MAX_CURVES + 1)
    m = np.full_like(n, 64.0)
    curves = GemmCurves(m, n, m, LAW.times_us(m, n, m), LAW)
    assert curves.ranges["n"] == (1, 2 * MAX_CURVES)
    assert curves.predict(64, 1001, 64)[0] == pytest.approx(LAW.parts(64, 1001, 64).total_us)


def test_thinning_keeps_both_ends() -> None:
    values = np.arange(10.0)
    assert _thin(values, 4).tolist() == [0.0, 3.0, 6.0, 9.0]
    assert _thin(values, 10).tolist() == values.tolist()
    assert _thin(values, 9).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]


def test_a_curve_is_a_line_over_the_logarithm_and_flat_beyond_its_rows() -> None:
    """One pair (n, k): residuals of 1 and 3 at m = 64 and 256 are 2 at 128."""
    m = np.array([64.0, 256.0])
    law = RooflineLaw(fixed_us=1.0, flops_per_us=1e9, bytes_per_us=3e6)
    same = np.full(2, 512.0)
    us = law.times_us(m, same, same) * np.exp([1.0, 3.0])
    curves = GemmCurves(m, same, same, us, law)
    for rows, residual in ((64, 1.0), (128, 2.0), (256, 3.0), (8, 1.0), (4096, 3.0)):
        found = curves.predict(rows, 512, 512)[0] / law.parts(rows, 512, 512).total_us
        assert np.log(found) == pytest.approx(residual)
    assert curves.ranges == {"m": (64, 256), "n": (512, 512), "k": (512, 512)}
