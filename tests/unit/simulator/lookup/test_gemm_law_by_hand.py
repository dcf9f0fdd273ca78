"""The tiled law on small GPUs, where tiles, waves and splits are counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from simulator.errors import ProfileError
from simulator.lookup.gemm_law import (
    Params,
    RooflineLaw,
    TiledLaw,
    check_params,
    fit_roofline,
    make_law,
)
from tests.unit.simulator.lookup.gemm_shapes import PARAMS

OFF = 1e6
"""µs of a tile that is never the fastest."""


def tiled(tile_class: int = 4, sms: int = 4, **changes: Any) -> TiledLaw:
    """A law of one class of tiles, with memory so fast that it does not count."""
    values: dict[str, Any] = {
        "sm_count": sms, "fixed_us": 2.0, "mb_us": 1e6, "bandwidth_bend": 0.0, "norm": 25.0,
        "ceil_share": 0.25, "idle_gain": 0.5, "repeat_share": 0.5, "reduce_us": 3.0,
        "reduce_mb_us": 1.0, "throttle": 0.0, "throttle_gflop": 1.0,
        "tile_mflop_us": tuple(1.0 if c == tile_class else 1e-3 for c in range(5)),
        "tile_us": tuple(7.0 if c == tile_class else OFF for c in range(5)),
    }  # fmt: skip
    return TiledLaw(**{**values, **changes})


@pytest.mark.parametrize(
    ("tile_class", "rows", "columns"),
    [
        (0, 256, 128), (0, 128, 256), (1, 128, 128), (2, 256, 64), (2, 64, 256),
        (3, 128, 64), (3, 64, 128), (4, 64, 64),
    ],
)  # fmt: skip
def test_a_shape_of_one_tile_takes_one_and_one_row_more_takes_two(
    tile_class: int, rows: int, columns: int
) -> None:
    """On one SM, T tiles take T main loops, an edge, and half an edge for each more."""
    law, k = tiled(tile_class, sms=1), 32
    loop_us = 2e-6 * rows * columns * k
    for m, n, tiles in ((rows, columns, 1), (rows + 1, columns, 2), (rows, columns + 1, 2)):
        expected = 2 + tiles * loop_us + 7 * (1 + 0.5 * (tiles - 1))
        assert law.parts(m, n, k).total_us == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("tiles", "loops", "edges"),
    [
        (1, 0.625, 0.625), (3, 0.875, 0.875), (4, 1.0, 1.0),
        (5, 1.25 + 0.75 / 4, 1 + 0.5 * (0.25 + 0.75 / 4)), (8, 2.0, 1.5),
    ],
)  # fmt: skip
def test_waves_of_four_sms(tiles: int, loops: float, edges: float) -> None:
    """Below a wave half of the idle share is won back; above it a quarter of the rest is lost."""
    k = 16  # so short that no grid is split
    loop_us = 2e-6 * 64 * 64 * k
    expected = 2 + loops * loop_us + edges * 7
    assert tiled().parts(64 * tiles, 64, k).total_us == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("sms", "best"), [(2, "no"), (8, "2"), (64, "4"), (512, "8")])
def test_a_grid_below_one_wave_splits_k_where_that_is_faster(sms: int, best: str) -> None:
    """Partial sums of one 64 × 64 tile in fp32 cost ``split`` times their bytes."""
    k = {2: 8_000, 8: 24_000, 64: 60_000, 512: 500_000}[sms]
    law = tiled(sms=sms, reduce_mb_us=1e-3)
    loop_us, partial_us = 2e-6 * 64 * 64 * k, 4e-6 * 64 * 64 / 1e-3

    def busy(waves: float) -> float:
        return 1 - 0.5 * (1 - waves)

    times = {"no": busy(1 / sms) * (loop_us + 7)}
    for split in (2, 4, 8):
        waves = split / sms
        if waves <= 1:
            time_us = busy(waves) * (loop_us / split + 7)
        else:
            time_us = waves * loop_us / split + 7 * (1 + 0.5 * (waves - 1))
        times[str(split)] = time_us + 3 + split * partial_us
    assert min(times, key=times.__getitem__) == best
    assert law.parts(64, 64, k).total_us == pytest.approx(2 + times[best], rel=1e-9)


def test_a_split_grid_may_need_a_part_of_another_wave() -> None:
    """Three tiles on four SMs, split in two: one wave and a half, a quarter of the rest lost."""
    k = 200_000
    law = tiled(reduce_us=0.0, reduce_mb_us=1e6, idle_gain=0.0)
    waves = 1.5 + 0.25 * 0.5
    loop_us = 2e-6 * 64 * 64 * k
    halves = waves * loop_us / 2 + 7 * (1 + 0.5 * (waves - 1))
    quarters, eighths = 3 * loop_us / 4 + 7 * 2, 6 * loop_us / 8 + 7 * 3.5
    expected = 2 + min(loop_us + 7, halves, quarters, eighths)
    assert law.parts(192, 64, k).total_us == pytest.approx(expected, rel=1e-6)


def test_large_problems_are_throttled() -> None:
    calm, hot = tiled(), tiled(throttle=0.5, throttle_gflop=3.0)
    m = n = k = 1024
    gflop = 2 * 1.024**3
    ratio = (hot.parts(m, n, k).total_us - 2) / (calm.parts(m, n, k).total_us - 2)
    assert ratio == pytest.approx(1 + 0.5 * gflop / (gflop + 3.0), rel=1e-9)


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_memory_and_compute_are_joined_by_a_norm(norm: float) -> None:
    """Two bytes an element; compute and memory share the norm in proportion to their powers."""
    m, n, k = 64, 64, 4096
    moved_mb = 2e-6 * (m * k + n * k + m * n)
    compute = tiled(sms=1).parts(m, n, k).total_us - 2
    bent = math.exp(0.3 * math.tanh(math.log(moved_mb / 20) / 2))
    memory = moved_mb / 0.05 * bent
    found = tiled(sms=1, norm=norm, mb_us=0.05, bandwidth_bend=0.3).parts(m, n, k)
    both = (compute**norm + memory**norm) ** (1 / norm)
    share = compute**norm / (compute**norm + memory**norm)
    expected = (2 + both, 2.0, both * share, both * (1 - share))
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_roofline_adds_its_three_terms() -> None:
    law = RooflineLaw(fixed_us=3.0, flops_per_us=1e6, bytes_per_us=1e3)
    assert law.parts(10, 20, 30) == pytest.approx(
        (3 + 0.012 + 2.2, 3.0, 2 * 6000 / 1e6, 2 * (300 + 600 + 200) / 1e3)
    )
    wide = RooflineLaw(fixed_us=3.0, flops_per_us=1e6, bytes_per_us=1e3, element_bytes=4)
    assert wide.parts(10, 20, 30).memory_us == pytest.approx(4.4)


TILED_LIMITS = {
    "fixed_us": (0.0, 1e6), "mb_us": (1e-3, 1e6), "bandwidth_bend": (-10.0, 10.0),
    "norm": (1.0, 25.0), "ceil_share": (0.0, 1.0), "idle_gain": (0.0, 1.0),
    "repeat_share": (0.0, 1.0), "reduce_us": (0.0, 1e6), "reduce_mb_us": (1e-3, 1e6),
    "throttle": (0.0, 100.0), "throttle_gflop": (1e-3, 1e9),
    "tile_mflop_us": (1e-3, 1e6), "tile_us": (1e-6, 1e6),
}  # fmt: skip
ROOFLINE_LIMITS = {
    "fixed_us": (0.0, 1e6), "flops_per_us": (1.0, 1e15), "bytes_per_us": (1.0, 1e15),
    "element_bytes": (1.0, 8.0),
}  # fmt: skip
ROOFLINE: Params = {"fixed_us": 1.0, "flops_per_us": 1e9, "bytes_per_us": 1e6}


@pytest.mark.parametrize(
    ("law", "name", "low", "high"),
    [
        *(("tiled", name, *limits) for name, limits in TILED_LIMITS.items()),
        *(("roofline", name, *limits) for name, limits in ROOFLINE_LIMITS.items()),
    ],
)
def test_numbers_are_taken_up_to_their_limits(law: str, name: str, low: float, high: float) -> None:
    params = PARAMS if law == "tiled" else ROOFLINE

    def check(number: float) -> None:
        listed = (2.0, 2.0, 2.0, 2.0, number) if name.startswith("tile_") else number
        check_params("a test", law, {**params, name: listed})

    check(low)
    check(high)
    for beyond in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf)):
        with pytest.raises(ProfileError, match=rf"params\.{name}"):
            check(beyond)


def test_a_law_has_all_its_numbers_and_no_others() -> None:
    for name in ROOFLINE:
        lacking = {key: value for key, value in ROOFLINE.items() if key != name}
        with pytest.raises(ProfileError, match=rf"lacks \['{name}'\]"):
            check_params("a test", "roofline", lacking)
    with pytest.raises(ProfileError, match=r"does not know \['norm'\]"):
        check_params("a test", "roofline", {**ROOFLINE, "norm": 1.0})
    for wrong in ((1.0, 1.0, 1.0, 1.0), 1.0):
        with pytest.raises(ProfileError, match="tile_us must be a list of 5 numbers"):
            check_params("a test", "tiled", {**PARAMS, "tile_us": wrong})
    with pytest.raises(ProfileError, match="norm must be one number"):
        check_params("a test", "tiled", {**PARAMS, "norm": (2.0,)})
    with pytest.raises(ProfileError, match=r"tile_us\[2\] must be a finite number"):
        check_params("a test", "tiled", {**PARAMS, "tile_us": (1.0, 1.0, -1.0, 1.0, 1.0)})


def test_a_made_law_has_its_numbers() -> None:
    law = make_law("roofline", {**ROOFLINE, "element_bytes": 4}, 132)
    assert law == RooflineLaw(fixed_us=1.0, flops_per_us=1e9, bytes_per_us=1e6, element_bytes=4)


def test_a_roofline_needs_eight_rows() -> None:
    law = RooflineLaw(fixed_us=3.5, flops_per_us=8e8, bytes_per_us=1.3e7)
    m, n, k = (x.ravel() for x in np.meshgrid([8.0, 4096], [64.0, 2048], [64.0, 4096]))
    assert len(m) == 8
    assert fit_roofline(m, n, k, law.times_us(m, n, k)) is not None
    assert fit_roofline(m[1:], n[1:], k[1:], law.times_us(m, n, k)[1:]) is None


@pytest.mark.parametrize("fixed_us", [0.5, -0.5])
def test_a_roofline_has_no_number_below_zero(fixed_us: float) -> None:
    law = RooflineLaw(fixed_us=fixed_us, flops_per_us=8e5, bytes_per_us=1.3e4)
    m, n, k = (x.ravel() for x in np.meshgrid([8.0, 4096], [64.0, 2048], [64.0, 4096]))
    found = fit_roofline(m, n, k, law.times_us(m, n, k))
    assert (found is not None) == (fixed_us > 0)


@pytest.mark.parametrize("rate", [math.inf, math.nan, 0.0])
def test_a_law_without_a_time_is_refused(rate: float) -> None:
    params = {"fixed_us": 0.0, "flops_per_us": rate, "bytes_per_us": math.inf}
    with pytest.raises(ProfileError, match="GEMM law 'roofline' g"):
        make_law("roofline", params, 132)
