"""Pointwise times: rows, laws by name, the default law."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup.pointwise import (
    SUMMED,
    PointwiseFit,
    PointwiseRow,
    PointwiseTable,
    with_sums,
)
from simulator.ops import Pointwise
from tests.conftest import REPOSITORY

LAW = PointwiseFit(
    names=("gelu", "default"), fixed_us=2.0, small_gb_s=4000.0, knee_bytes=20_000_000,
    large_gb_s=2000.0, max_bytes=100_000_000, error=0.04,
)  # fmt: skip


def row(name: str, size: int, us: float) -> PointwiseRow:
    return PointwiseRow(name=name, bytes_read=size, bytes_written=size, median_us=us)


def test_in_cache_and_beyond() -> None:
    table = PointwiseTable(fits=[LAW])
    assert table.estimate(Pointwise("gelu", 8_000_000, 0)).duration_us == pytest.approx(4.0)
    large = Pointwise("gelu", 20_000_000, 10_000_000)
    assert table.estimate(large).duration_us == pytest.approx(2.0 + 5.0 + 5.0)
    assert table.shares(large) == pytest.approx((2.0, 10.0))


def test_names_that_no_law_lists_take_the_default_and_say_so() -> None:
    table = PointwiseTable(fits=[LAW])
    assert table.estimate(Pointwise("gelu", 100, 100)).source == "fitted"
    other = table.estimate(Pointwise("quantize", 100, 100))
    assert other.source == "assumed"
    assert other.error > LAW.error


def test_without_a_default_unknown_names_are_missing() -> None:
    with pytest.raises(MissingSectionError, match="gelu"):
        PointwiseTable([row("gelu", 10, 1.0)]).estimate(Pointwise("adam", 1, 1))


def test_rows_are_measured_then_interpolated_then_scaled() -> None:
    table = PointwiseTable([row("gelu", 1000, 10.0), row("gelu", 3000, 20.0)], [LAW])
    assert table.estimate(Pointwise("gelu", 1000, 1000))[:2] == (10.0, "measured")
    assert table.estimate(Pointwise("gelu", 2000, 2000))[:2] == (15.0, "interpolated")
    assert table.estimate(Pointwise("gelu", 1, 1)).duration_us == 10.0
    assert table.estimate(Pointwise("gelu", 9000, 9000))[:2] == (60.0, "extrapolated")


@pytest.mark.parametrize(
    ("gpu", "sms", "boost_mhz", "gb_s", "off"),
    [("h20", 78, 1980, 4000.0, 0.01), ("a100", 108, 1410, 2039.0, 0.03)],
)
def test_sums_by_index_take_what_the_table_says(
    gpu: str, sms: int, boost_mhz: int, gb_s: float, off: float
) -> None:
    """The longer of two calls, less the shorter, and less the copy of the target by bandwidth."""
    text = (REPOSITORY / "data/measured/moe/scatter_add.csv").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    short, long = (row for row in csv.DictReader(lines) if row["gpu"] == gpu)
    elements, copied, us = (
        float(long[name]) - float(short[name]) for name in ("elements", "target_elements", "us")
    )
    table = PointwiseTable(fits=with_sums([LAW], sms, boost_mhz))
    found = table.estimate(Pointwise(SUMMED, round(2 * elements), 0)).duration_us - LAW.fixed_us
    assert found == pytest.approx(us - 4 * copied / gb_s / 1e3, rel=off)


def test_sums_by_index_have_an_assumed_law_unless_the_profile_has_one() -> None:
    table = PointwiseTable(fits=with_sums([LAW], 100))
    found = table.estimate(Pointwise(SUMMED, 87_700_000, 0))
    assert found.duration_us == pytest.approx(2.0 + 1000.0, rel=1e-6)
    assert found.source == "assumed"
    own = replace(LAW, names=(SUMMED,))
    assert with_sums([LAW, own], 100) == (LAW, own)
    assert with_sums([own], 100) == (own,)
    assert with_sums([replace(LAW, names=("gelu",))], 100) == (replace(LAW, names=("gelu",)),)


def test_far_above_the_fitted_sizes_is_extrapolated() -> None:
    far = PointwiseTable(fits=[LAW]).estimate(Pointwise("gelu", 10**9, 0))
    assert far.source == "extrapolated"


@pytest.mark.parametrize("changes", [{"names": ()}, {"small_gb_s": 0.0}, {"error": -0.1}])
def test_impossible_laws_are_refused(changes: dict[str, object]) -> None:
    from dataclasses import replace

    with pytest.raises(ProfileError):
        replace(LAW, **changes)  # type: ignore[arg-type]
