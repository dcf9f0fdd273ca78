"""What all look-ups share: how far outside a range, how much wider an error, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import ProfileError
from simulator.lookup import (
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    require_sorted,
    row_error,
    widened,
)
from simulator.lookup.attention import AttentionRow
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.pointwise import PointwiseRow
from tests.unit.simulator.near import near


def test_reach_is_the_factor_outside_a_range() -> None:
    assert [reach(value, 4.0, 10.0) for value in (1, 4, 7, 10, 25)] == [4.0, 1.0, 1.0, 1.0, 2.5]
    assert reach(0, 4.0, 10.0) == pytest.approx(4e9)


def test_an_error_grows_by_half_with_each_doubling_beyond_twice_the_range() -> None:
    assert widened("fitted", 0.04, 2.0) == ("fitted", 0.04)
    assert widened("fitted", 0.2, 4.0) == near("extrapolated", 0.4)
    assert widened("fitted", 0.04, 8.0) == near("extrapolated", 0.25)
    assert widened("assumed", 0.2, 4.0) == near("assumed", 0.4)
    assert widened("fitted", 0.9, 64.0)[1] == 1.0


@pytest.mark.parametrize(
    ("samples", "spread_us", "error"),
    [(1, 5.0, 0.02), (2, 0.0, 0.02), (2, 5.0, 0.05), (9, 0.01, 0.005)],
)
def test_a_rows_error_is_its_spread(samples: int, spread_us: float, error: float) -> None:
    row = PointwiseRow(
        name="gelu", bytes_read=1, bytes_written=1, median_us=100.0, spread_us=spread_us,
        samples=samples,
    )  # fmt: skip
    assert row_error(row) == error


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "1", True, None])
def test_a_number_is_finite_and_not_below_its_limit(value: Any) -> None:
    require_number("x", "y", 0)
    require_number("x", "y", -2.5, low=-2.5)
    with pytest.raises(ProfileError, match="x: y must be a finite number ≥ 0, got"):
        require_number("x", "y", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
def test_a_count_is_a_whole_number(value: Any) -> None:
    require_count("x", "y", 1)
    require_count("x", "y", 0, low=0)
    with pytest.raises(ProfileError, match="x: y must be a whole number ≥ 1, got"):
        require_count("x", "y", value)


def test_a_rate_is_above_zero_and_a_choice_is_known() -> None:
    require_positive("x", "y", 1e-300)
    with pytest.raises(ProfileError, match="must be > 0"):
        require_positive("x", "y", 0.0)
    require_choice("x", "y", "b", ("a", "b"))
    with pytest.raises(ProfileError, match="must be one of a, b, got 'c'"):
        require_choice("x", "y", "c", ("a", "b"))


def test_rows_rise() -> None:
    require_sorted("x", [])
    require_sorted("x", [1, 2, 5])
    with pytest.raises(ProfileError, match=r"x\.rows\[2\] 2 repeats rows\[1\] 2"):
        require_sorted("x", [1, 2, 2])
    with pytest.raises(ProfileError, match=r"x\.rows\[1\] 1 must come before rows\[0\] 2"):
        require_sorted("x", [2, 1, 3])


def test_a_spread_that_is_not_told_is_not_known() -> None:
    rows = (
        PointwiseRow(name="gelu", bytes_read=1, bytes_written=1, median_us=100.0, samples=9),
        AttentionRow(batch=1, heads=1, kv_heads=1, seq=1, head_dim=1, median_us=100.0, samples=9),
        CollectiveRow(op="broadcast", nodes=1, per_node=2, bytes=1, median_us=100.0, samples=9),
    )
    assert [row_error(row) for row in rows] == [0.02, 0.02, 0.02]
    assert [replace(row, samples=1).samples for row in rows] == [1, 1, 1]
