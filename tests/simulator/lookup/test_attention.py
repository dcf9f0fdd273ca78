"""Attention times: rows, the law, other heads and directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.ops import Attention

LAW = AttentionFit(
    sm_count=132, head_dim=128, fixed_us=14.0, row_ns=0.56, tflops=630.0, tile_tflops=3000.0,
    blend=1.2, backward_ratio=2.9, min_seq=1024, max_seq=16384, error=0.05, backward_error=0.07,
)  # fmt: skip
OP = Attention(4, 8, 8, 2048, 128)


def test_large_shapes_approach_the_saturated_rate() -> None:
    op = Attention(64, 32, 32, 16384, 128)
    us = AttentionTable(fit=LAW).estimate(op).duration_us
    assert 0.8 < op.flops / us / 1e6 / LAW.tflops < 1.0


def test_backward_is_the_forward_times_the_ratio() -> None:
    table = AttentionTable(fit=LAW)
    forward, backward = (table.estimate(OP._replace(direction=d)) for d in ("forward", "backward"))
    assert backward.duration_us == pytest.approx(2.9 * forward.duration_us)
    assert backward.error > forward.error


def test_a_row_wins_and_shares_sum_to_it() -> None:
    row = AttentionRow(batch=4, heads=8, kv_heads=8, seq=2048, head_dim=128, median_us=123.0)
    table = AttentionTable([row], LAW)
    assert table.estimate(OP)[:2] == (123.0, "measured")
    assert sum(table.shares(OP)) == pytest.approx(123.0)


def test_without_a_law_the_nearest_row_is_scaled() -> None:
    row = AttentionRow(batch=4, heads=8, kv_heads=8, seq=2048, head_dim=128, median_us=100.0)
    table = AttentionTable([row])
    assert table.estimate(OP._replace(batch=8))[:2] == (200.0, "interpolated")
    assert table.estimate(OP._replace(batch=64)).source == "extrapolated"
    assert table.estimate(OP._replace(direction="backward")).source == "assumed"


@pytest.mark.parametrize("changes", [{"head_dim": 64}, {"dtype": "fp32"}])
def test_other_heads_and_dtypes_are_assumed(changes: dict[str, object]) -> None:
    assert AttentionTable(fit=LAW).estimate(OP._replace(**changes)).source == "assumed"  # type: ignore[arg-type]


def test_far_sequences_are_extrapolated_with_a_wider_error() -> None:
    table = AttentionTable(fit=LAW)
    assert table.estimate(OP._replace(seq=512)).source == "fitted"
    far = table.estimate(OP._replace(seq=128))
    assert far.source == "extrapolated"
    assert far.error > LAW.error


@given(st.integers(1, 64), st.integers(1, 96), st.integers(1, 20000))
def test_more_work_never_takes_less_time(batch: int, heads: int, seq: int) -> None:
    table = AttentionTable(fit=LAW)
    op = Attention(batch, heads, heads, seq, 128)
    more = op._replace(batch=batch + 1), op._replace(heads=heads + 1), op._replace(seq=seq + 1)
    for larger in more:
        assert table.estimate(larger).duration_us >= table.estimate(op).duration_us


def test_an_empty_section_is_missing() -> None:
    with pytest.raises(MissingSectionError):
        AttentionTable()


def test_an_impossible_row_is_refused() -> None:
    with pytest.raises(ProfileError, match="median_us"):
        AttentionRow(batch=1, heads=1, kv_heads=1, seq=1, head_dim=1, median_us=float("nan"))
