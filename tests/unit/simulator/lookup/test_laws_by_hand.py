"""Attention and pointwise times at points that are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import ProfileError
from simulator.lookup import expected
from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow, PointwiseTable
from simulator.ops import Attention, Pointwise
from tests.unit.simulator.near import near

LAW = AttentionFit(
    sm_count=100, head_dim=64, fixed_us=5.0, row_ns=2.0, tflops=400.0, tile_tflops=200.0,
    blend=1.0, backward_ratio=3.0, min_seq=512, max_seq=4096, error=0.05, backward_error=0.07,
)  # fmt: skip
OP = Attention(2, 3, 1, 1000, 64)


def parts_us(op: Attention, slower: float = 1.0) -> tuple[float, float, float]:
    """Rows, FLOPs and the longest tile at a rate of 1/``slower``, for 64 columns a head."""
    rows = op.batch * op.heads * op.seq * 2.0 / 1e3
    flops = 4 * op.batch * op.heads * op.seq**2 * op.head_dim / (2 if op.causal else 1)
    tile = 4 * min(128, op.seq) * op.seq * op.head_dim
    return rows, flops / 400e6 * slower, tile * 100 / 200e6 * slower


@pytest.mark.parametrize("seq", [100, 1000, 4096])
def test_the_law_adds_rows_flops_and_the_longest_tile(seq: int) -> None:
    """With p = 1 the norm is a sum: 128 query rows, or as many as there are, see all keys."""
    op = OP._replace(seq=seq)
    rows, flops, tile = parts_us(op)
    fixed, compute, memory = AttentionTable(fit=LAW).shares(op)
    assert fixed == 5.0
    assert memory == pytest.approx((rows + flops + tile) * rows / (rows + flops))
    assert compute + memory == pytest.approx(rows + flops + tile)
    whole = AttentionTable(fit=LAW).estimate(op)
    assert whole.duration_us == pytest.approx(5.0 + rows + flops + tile)


def test_a_norm_of_two_is_the_root_of_squares() -> None:
    rows, flops, tile = parts_us(OP)
    expected = 5.0 + ((rows + flops) ** 2 + tile**2) ** 0.5
    found = AttentionTable(fit=replace(LAW, blend=2.0)).estimate(OP)
    assert found.duration_us == pytest.approx(expected)


def test_other_heads_have_other_rows_and_smaller_ones_a_lower_rate() -> None:
    """Rows ∝ head size; a quarter of the size runs at half of the rate, more at the same."""
    rows, flops, tile = parts_us(OP._replace(head_dim=16), slower=2.0)
    small = AttentionTable(fit=LAW).estimate(OP._replace(head_dim=16))
    assert small.duration_us == pytest.approx(5.0 + rows / 4 + flops + tile)
    rows, flops, tile = parts_us(OP._replace(head_dim=128))
    large = AttentionTable(fit=LAW).estimate(OP._replace(head_dim=128))
    assert large == near(5.0 + rows * 2 + flops + tile, "assumed", expected.ATTENTION_HEADS.error)


def test_backward_is_unsure_of_its_ratio_too() -> None:
    forward = AttentionTable(fit=LAW).estimate(OP)
    backward = AttentionTable(fit=LAW).estimate(OP._replace(direction="backward"))
    assert forward[1:] == ("fitted", 0.05)
    assert backward == near(3 * forward.duration_us, "fitted", 0.12)


@pytest.mark.parametrize(
    ("seq", "source"),
    [(256, "fitted"), (255, "extrapolated"), (8192, "fitted"), (8193, "extrapolated")],
)
def test_a_sequence_may_be_twice_as_far(seq: int, source: str) -> None:
    assert AttentionTable(fit=LAW).estimate(OP._replace(seq=seq)).source == source


def attention_row(us: float, **changes: Any) -> AttentionRow:
    values: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 4, "seq": 1024, "head_dim": 64}
    return AttentionRow(**{**values, **changes}, median_us=us)


def test_the_nearest_row_is_nearest_in_sequence_first() -> None:
    """Twice the sequence is as far as four times the heads or head columns."""
    op = Attention(2, 4, 4, 1024, 64)
    table = AttentionTable([attention_row(100.0, seq=2048), attention_row(7.0, heads=12)])
    assert table.estimate(op).duration_us == pytest.approx(7 / 3)
    table = AttentionTable([attention_row(100.0, seq=2048), attention_row(7.0, heads=20)])
    assert table.estimate(op).duration_us == pytest.approx(25.0)
    table = AttentionTable([attention_row(7.0, batch=6), attention_row(100.0, head_dim=128)])
    assert table.estimate(op).duration_us == pytest.approx(50.0)
    table = AttentionTable([attention_row(9.0, batch=6), attention_row(64.0, head_dim=256)])
    assert table.estimate(op).duration_us == pytest.approx(3.0)


@pytest.mark.parametrize("change", [{"head_dim": 32}, {"seq": 512}, {"batch": 1}, {"heads": 2}])
def test_smaller_rows_are_as_far_as_larger_ones(change: dict[str, int]) -> None:
    """Half of one size is further than one and a half of the batch."""
    table = AttentionTable([attention_row(100.0, **change), attention_row(9.0, batch=3)])
    assert table.estimate(Attention(2, 4, 4, 1024, 64)).duration_us == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("batch", "source", "errors"),
    [(4, "interpolated", 1), (1, "interpolated", 1), (8, "extrapolated", 2)],
)
def test_a_row_serves_up_to_twice_its_work(batch: int, source: str, errors: int) -> None:
    error = errors * expected.ATTENTION_NEAREST.error
    table = AttentionTable([attention_row(100.0)])
    found = table.estimate(Attention(batch, 4, 4, 1024, 64))
    assert found == near(50.0 * batch, source, error)


def test_the_other_direction_serves_where_there_is_no_own() -> None:
    table = AttentionTable([attention_row(100.0)])
    backward = table.estimate(Attention(2, 4, 4, 1024, 64, True, "backward"))
    assert (backward.duration_us, backward.source) == near(250.0, "assumed")
    other = attention_row(300.0, seq=64, direction="backward")
    both = AttentionTable([attention_row(100.0), other])
    own = both.estimate(Attention(2, 4, 4, 64, 64, True, "backward"))
    assert own.duration_us == 300.0
    assert both.shares(Attention(2, 4, 4, 1024, 64)) == (0.0, 100.0, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"blend": 0.9}, {"blend": 25.1}, {"tflops": 0.0}, {"tile_tflops": 0.0},
        {"backward_ratio": 0.0}, {"fixed_us": -1.0}, {"row_ns": -1.0}, {"error": -1.0},
        {"backward_error": -1.0}, {"sm_count": 0}, {"head_dim": 0}, {"min_seq": 0},
        {"max_seq": 0}, {"kind": "guessed"},
    ],
    ids=str,
)  # fmt: skip
def test_attention_laws_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    assert replace(LAW, blend=25.0).blend == 25.0
    with pytest.raises(ProfileError, match=next(iter(changes))):
        replace(LAW, **changes)


@pytest.mark.parametrize(
    "changes",
    [{name: 0} for name in ("batch", "heads", "kv_heads", "seq", "head_dim", "samples")]
    + [{"direction": "sideways"}, {"spread_us": -1.0}],
    ids=str,
)
def test_attention_rows_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=next(iter(changes))):
        attention_row(1.0, **changes)


POINTS = PointwiseFit(
    names=("gelu", "default"), fixed_us=2.0, small_gb_s=4000.0, knee_bytes=20_000_000,
    large_gb_s=2000.0, max_bytes=100_000_000, error=0.04,
)  # fmt: skip


def point(size: int, us: float, **changes: Any) -> PointwiseRow:
    values: dict[str, Any] = {"name": "gelu", "bytes_read": size, "bytes_written": size}
    return PointwiseRow(**{**values, **changes}, median_us=us)


@pytest.mark.parametrize(
    ("megabytes", "us"), [(1, 2.25), (20, 7.0), (22, 8.0), (100, 47.0), (400, 197.0)]
)
def test_the_cache_serves_up_to_the_knee(megabytes: int, us: float) -> None:
    op = Pointwise("gelu", 1_000_000 * megabytes - 7, 7)
    table = PointwiseTable(fits=[POINTS])
    assert table.estimate(op).duration_us == pytest.approx(us)
    assert table.shares(op) == pytest.approx((2.0, us - 2.0))


def test_sources_of_pointwise_laws() -> None:
    table = PointwiseTable(fits=[POINTS])
    assert table.estimate(Pointwise("gelu", 10**8, 10**8))[1:] == ("fitted", 0.04)
    assert table.estimate(Pointwise("gelu", 10**8, 3 * 10**8))[1:] == near("extrapolated", 0.2)
    assert table.estimate(Pointwise("adam", 10, 10))[1:] == (
        "assumed",
        expected.POINTWISE_DEFAULT.error,
    )
    unsure = PointwiseTable(fits=[replace(POINTS, error=0.5)])
    assert unsure.estimate(Pointwise("adam", 10, 10))[1:] == ("assumed", 0.5)


def test_between_rows_runs_a_line_and_beyond_them_bytes_count() -> None:
    """Rows of 2, 6 and 10 kB; sizes are those of reads and writes together."""
    table = PointwiseTable(
        [point(1000, 10.0), point(3000, 30.0), point(5000, 40.0)], table_error=0.06
    )
    for read, us, source, error in (
        (3000, 15.0, "interpolated", 0.06), (7000, 32.5, "interpolated", 0.06),
        (20_000, 80.0, "interpolated", 0.06), (40_000, 160.0, "extrapolated", 0.2),
        (1500, 10.0, "interpolated", 0.06), (1, 10.0, "interpolated", 0.06),
    ):  # fmt: skip
        found = table.estimate(Pointwise("gelu", read, 0))
        assert found == near(us, source, error)


def test_shares_of_rows_are_the_smallest_row_and_the_rest() -> None:
    several = PointwiseTable([point(1000, 10.0), point(3000, 30.0)])
    assert several.shares(Pointwise("gelu", 4000, 0)) == pytest.approx((10.0, 10.0))
    single = PointwiseTable([point(1000, 10.0)])
    assert single.shares(Pointwise("gelu", 4000, 0)) == pytest.approx((0.0, 20.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed_us": -1.0}, {"large_gb_s": 0.0}, {"small_gb_s": 0.0}, {"knee_bytes": 0},
        {"max_bytes": 0}, {"kind": "guessed"}, {"error": -0.1},
    ],
    ids=str,
)  # fmt: skip
def test_pointwise_laws_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=next(iter(changes))):
        replace(POINTS, **changes)


@pytest.mark.parametrize(
    "changes",
    [{"bytes_read": -1}, {"bytes_written": -1}, {"samples": 0}, {"spread_us": -1.0}],
    ids=str,
)
def test_pointwise_rows_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    assert point(0, 1.0).bytes_read == 0
    with pytest.raises(ProfileError, match=next(iter(changes))):
        point(1, 1.0, **changes)
