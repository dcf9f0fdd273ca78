"""The laws themselves: pure Python equals arrays, and the physics they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.lookup.gemm_law import RooflineLaw, fit_roofline, make_law
from tests.unit.simulator.lookup.gemm_shapes import PARAMS, SMS

LAW = make_law("tiled", PARAMS, SMS)
ROOFLINE = RooflineLaw(fixed_us=3.5, flops_per_us=8e8, bytes_per_us=1.3e7)
DIMENSION = st.integers(1, 70_000)


@given(m=DIMENSION, n=DIMENSION, k=DIMENSION, tiled=st.booleans())
def test_arrays_and_pure_python_agree(m: int, n: int, k: int, tiled: bool) -> None:
    law = LAW if tiled else ROOFLINE
    parts = law.parts(m, n, k)
    column = [np.array([float(x)]) for x in (m, n, k)]
    assert law.times_us(*column)[0] == pytest.approx(parts.total_us, rel=1e-12)
    assert sum(parts[1:]) == pytest.approx(parts.total_us, rel=1e-12)


@pytest.mark.parametrize("growth", [2, 4, 16])
def test_large_shapes_take_time_in_proportion_to_their_flops(growth: int) -> None:
    one = LAW.parts(65536, 8192, 8192).total_us
    assert LAW.parts(growth * 65536, 8192, 8192).total_us == pytest.approx(growth * one, rel=0.03)


def test_one_tile_over_a_full_wave_costs() -> None:
    full = LAW.parts(256 * 33, 512, 4096).total_us  # 33 × 4 tiles of 256 × 128 on 132 SMs
    assert LAW.parts(256 * 33 + 1, 512, 4096).total_us > 1.01 * full


def test_a_narrow_grid_with_a_long_k_is_split() -> None:
    unsplit = PARAMS["tile_us"], 65536 * 2e-6 * 64 * 64 / 4.0
    assert LAW.parts(64, 64, 65536).total_us < unsplit[1]


def test_cutting_rows_never_gains_much() -> None:
    for m, n, k in [(4096, 5120, 640), (8192, 1280, 8192), (16384, 28672, 4096)]:
        whole = LAW.parts(m, n, k).total_us
        costs = [p * LAW.parts(m // p, n, k).total_us / whole for p in (2, 4, 8)]
        assert min(costs) > 0.95
        assert costs[2] > costs[0] - 0.05


def test_a_roofline_is_found_again() -> None:
    m, n, k = (x.ravel() for x in np.meshgrid([8.0, 512, 4096], [64.0, 2048], [64.0, 4096]))
    found = fit_roofline(m, n, k, ROOFLINE.times_us(m, n, k))
    assert found is not None
    assert found.fixed_us == pytest.approx(3.5)
    assert found.flops_per_us == pytest.approx(8e8)
    assert found.bytes_per_us == pytest.approx(1.3e7)


def test_too_few_or_equal_rows_give_no_roofline() -> None:
    same = np.full(20, 512.0)
    assert fit_roofline(same, same, same, same) is None
    assert fit_roofline(same[:3], same[:3], same[:3], same[:3]) is None
