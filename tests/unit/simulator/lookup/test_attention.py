"""Attention times: rows, the law, other heads and directions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import row_error
from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.lookup.expected import ATTENTION_BEHIND
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
    far = AttentionTable([replace(row, batch=64)]).estimate(OP)  # as far, to the smaller side
    assert far == table.estimate(OP._replace(batch=64))._replace(duration_us=100.0 / 16)
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


BEHIND = OP._replace(kv_seq=8192)


def test_the_longest_tile_of_an_offset_block_sees_all_keys() -> None:
    """One tile of 128 queries after 8,064 keys: rows, its pairs at the rate of all SMs, and its
    whole rectangle at that of one."""
    op = Attention(1, 1, 1, 128, 128, kv_seq=8192)
    work = 128 * 0.56e-3 + 4 * 128 * 128 * (8064 + 64) / 630e6
    tile = 4 * 128 * 128 * 8192 * 132 / 3000e6
    assert sum(LAW.shares_us(op)) == pytest.approx(14.0 + (work**1.2 + tile**1.2) ** (1 / 1.2))


def test_keys_decide_whether_an_offset_block_is_extrapolated() -> None:
    table = AttentionTable(fit=LAW)
    short = OP._replace(seq=128, kv_seq=4096)
    near, far = table.estimate(short), table.estimate(short._replace(kv_seq=65_536))
    assert near.source == far.source == "assumed"
    assert far.error > near.error > LAW.error


def test_behind_keys_the_law_gives_the_share_of_the_whole_sequences_row() -> None:
    """A row that is twice as slow as the law is so for its slices, too."""
    plain = AttentionTable(fit=LAW)
    whole = OP._replace(seq=8192)
    us = 2 * plain.estimate(whole).duration_us
    row = AttentionRow(batch=4, heads=8, kv_heads=8, seq=8192, head_dim=128, median_us=us)
    found = AttentionTable([row], LAW).estimate(BEHIND)
    assert found.duration_us == pytest.approx(2 * plain.estimate(BEHIND).duration_us)
    assert found.source == "assumed"
    assert found.error == pytest.approx(row_error(row) + ATTENTION_BEHIND.error * 6144 / 7168)


@given(st.integers(1, 64), st.integers(64, 16384), st.integers(2, 6), st.booleans())
def test_slices_never_take_less_than_the_sequence(
    heads: int, length: int, slices: int, back: bool
) -> None:
    """No cut makes attention cheaper: hiding communication is all that slices can gain."""
    whole = Attention(1, heads, heads, length, 128, direction="backward" if back else "forward")
    cuts = [length * index // slices for index in range(slices + 1)]
    spans = list(pairwise(cuts))
    parts = [whole._replace(seq=b - a, kv_seq=b if a else 0) for a, b in spans]
    assert sum(part.flops for part in parts) == whole.flops
    together = sum(sum(LAW.shares_us(part)) for part in parts)
    assert together >= sum(LAW.shares_us(whole)) * (1 - 1e-9)


def test_slices_of_a_sequence_take_as_long_as_it_but_for_rows_that_fill_no_gpu() -> None:
    table = AttentionTable(fit=LAW)
    whole = Attention(1, 64, 64, 16384, 128)
    halves = (whole._replace(seq=8192), whole._replace(seq=8192, kv_seq=16384))
    assert sum(half.flops for half in halves) == whole.flops
    together = sum(table.estimate(half).duration_us for half in halves)
    assert together == pytest.approx(table.estimate(whole).duration_us, rel=0.02)


def test_rows_alone_give_the_share_of_the_whole_sequence() -> None:
    row = AttentionRow(batch=4, heads=8, kv_heads=8, seq=8192, head_dim=128, median_us=1600.0)
    found = AttentionTable([row]).estimate(BEHIND)
    whole = OP._replace(seq=8192)
    assert found.duration_us == pytest.approx(1600.0 * BEHIND.flops / whole.flops)
    assert BEHIND.flops / whole.flops == pytest.approx(2048 * (8192 - 1024) / (8192 * 8192 / 2))
    assert found.source == "assumed"
    own = AttentionTable([row]).estimate(whole).error
    assert found.error == pytest.approx(own + 6144 / 7168 * ATTENTION_BEHIND.error)


def test_rows_of_other_lengths_are_scaled_to_the_whole_sequence_first() -> None:
    row = AttentionRow(batch=4, heads=8, kv_heads=8, seq=4096, head_dim=128, median_us=400.0)
    found = AttentionTable([row]).estimate(BEHIND)
    assert found.duration_us == pytest.approx(400.0 * BEHIND.flops / row.signature.flops)
    assert found.source == "assumed"


def test_a_row_behind_keys_is_its_own() -> None:
    values = {"batch": 4, "heads": 8, "kv_heads": 8, "seq": 2048, "head_dim": 128}
    row = AttentionRow(**values, kv_seq=8192, median_us=77.0)  # type: ignore[arg-type]
    assert AttentionTable([row], LAW).estimate(BEHIND)[:2] == (77.0, "measured")
    with pytest.raises(ProfileError, match="kv_seq must be 0"):
        AttentionRow(**values, kv_seq=2048, median_us=77.0)  # type: ignore[arg-type]
