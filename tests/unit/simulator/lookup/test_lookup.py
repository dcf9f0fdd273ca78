"""What all look-ups share: how far outside a range, how much wider an error, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domino_tune.store.files import bundled_names
from domino_tune.store.profiles import load_profile
from simulator.errors import ProfileError
from simulator.lookup import (
    Estimate,
    Roof,
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
from simulator.ops import Attention, Gemm, Layout, Pointwise
from simulator.profile import Profile
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


# No look-up of a bundled profile beats its GPU's data sheet ---------------------------------------

L2_BYTES: Final = {
    "a100-sxm": 40e6, "b200-sxm": 126e6, "b300-sxm": 126e6, "gb200-nvl72": 126e6,
    "gb300-nvl72": 126e6, "h100-dgx": 50e6, "h200-sxm": 50e6,
}  # fmt: skip
"""As the data sheets say; the test's own, not the profile's."""
MOST_OF_BANDWIDTH: Final = 0.95
ROUNDING: Final = 1 + 1e-9
PROFILES: Final = pytest.mark.parametrize("name", bundled_names())

sizes = st.integers(1, 1 << 17)
"""Far beyond what was timed, on both sides."""


@cache
def profile_of(name: str) -> Profile:
    return load_profile(name)


@cache
def tables(name: str) -> Any:
    profile = profile_of(name)
    return profile.gemm_table(), profile.attention_table(), profile.pointwise_table()


def peaks(name: str) -> tuple[float, float]:
    """FLOP and bytes of a microsecond."""
    machine = profile_of(name).machine
    return 1e6 * machine.peak_tflops["bf16"], 1e3 * machine.memory_bandwidth_gb_s


def gemm_bytes(gemm: Gemm) -> int:
    """Every operand once; fp32 sums are read and written."""
    output = 8 if gemm.accumulate else 2
    return 2 * (gemm.m * gemm.k + gemm.k * gemm.n) + output * gemm.m * gemm.n


@PROFILES
@given(m=sizes, n=sizes, k=sizes, layout=st.sampled_from(["forward", "dgrad", "wgrad"]),
       accumulate=st.booleans())  # fmt: skip
def test_no_gemm_beats_the_peaks(
    name: str, m: int, n: int, k: int, layout: Layout, accumulate: bool
) -> None:
    gemm = Gemm(m, n, k, layout, accumulate=accumulate and layout == "wgrad")
    check_gemm(name, gemm)


def check_gemm(name: str, gemm: Gemm) -> None:
    flops_per_us, bytes_per_us = peaks(name)
    us = tables(name)[0].estimate(gemm).duration_us
    assert gemm.flops / us <= flops_per_us * ROUNDING
    if gemm_bytes(gemm) > 4 * L2_BYTES[name]:
        assert gemm_bytes(gemm) / us <= MOST_OF_BANDWIDTH * bytes_per_us * ROUNDING


@PROFILES
def test_no_timed_gemm_beats_the_peaks(name: str) -> None:
    for row in profile_of(name).section("gemm").rows:
        check_gemm(name, row.signature)


@PROFILES
@given(batch=st.integers(1, 64), heads=st.integers(1, 128), seq=sizes,
       head_dim=st.sampled_from([64, 80, 96, 128, 256]), forward=st.booleans(),
       causal=st.booleans())  # fmt: skip
def test_no_attention_beats_the_peak(
    name: str, batch: int, heads: int, seq: int, head_dim: int, forward: bool, causal: bool
) -> None:
    direction: Any = "forward" if forward else "backward"
    op = Attention(batch, heads, heads, seq, head_dim, causal, direction)
    us = tables(name)[1].estimate(op).duration_us
    assert op.flops / us <= peaks(name)[0] * ROUNDING


@PROFILES
@given(data=st.data())
def test_no_pointwise_op_beats_the_bandwidth(name: str, data: st.DataObject) -> None:
    section = profile_of(name).section("pointwise")
    names = {row.name for row in section.rows} | {n for fit in section.fits for n in fit.names}
    op = Pointwise(
        data.draw(st.sampled_from(sorted(names))),
        data.draw(st.integers(1, 1 << 36)),
        data.draw(st.integers(0, 1 << 36)),
    )
    check_pointwise(name, op)


def check_pointwise(name: str, op: Pointwise) -> None:
    moved, us = op.bytes_read + op.bytes_written, tables(name)[2].estimate(op).duration_us
    assert us > 0
    if moved > 4 * L2_BYTES[name]:
        assert moved / us <= MOST_OF_BANDWIDTH * peaks(name)[1] * ROUNDING


@PROFILES
def test_no_timed_pointwise_op_beats_the_bandwidth(name: str) -> None:
    for row in profile_of(name).section("pointwise").rows:
        check_pointwise(name, row.signature)


def test_a_look_up_below_the_roof_is_lifted_to_it_and_less_sure() -> None:
    roof = Roof({"bf16": 1e9}, bytes_per_us=2e6, l2_bytes=10_000_000)
    fast, slow = Estimate(1.0, "fitted", 0.1), Estimate(50.0, "fitted", 0.1)
    assert roof.floor_us("bf16", 4e9, 0) == 4.0
    assert roof.floor_us("bf16", 4e9, 41_000_000) == pytest.approx(41 / 1.9)
    assert roof.floor_us("bf16", 0, 40_000_000) == 0.0
    assert roof.floor_us("fp8", 4e9, 0) == 0.0
    assert roof.bounded(fast, "bf16", 4e9, 0) == Estimate(4.0, "fitted", 1.0)
    timed = roof.bounded(Estimate(3.2, "measured", 0.01), "bf16", 4e9, 0)
    assert (timed.duration_us, timed.source) == (4.0, "fitted")
    assert timed.error == pytest.approx(0.25)
    assert roof.bounded(slow, "bf16", 4e9, 41_000_000) is slow
