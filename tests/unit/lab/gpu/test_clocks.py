"""What is read off a GPU's clock and power: steady states, elasticities, ops' times."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.gpu.clocks import settled, told
from lab.gpu.played_plans import PLANS
from lab.gpu.sampler import Sample
from lab.gpu.sustained import (
    by_family,
    clock_at,
    elasticities,
    op_rows,
)
from simulator.ops import Attention, Gemm, Pointwise

GEMM, ATTENTION, COPY = Gemm(64, 64, 64), Attention(1, 2, 2, 64, 32), Pointwise("copy", 8, 8)
OPS = (GEMM, COPY, ATTENTION, GEMM)
EMPTY_NS = 500.0


def test_what_is_steady_counts() -> None:
    samples = [(0.0, 1980, 300.0), (9.9, 1500, 690.0), (10.0, 1470, 690.0), (11.0, 1480, 700.0)]
    found = settled(samples, [2.5e9] * 6, 10.0)
    assert found == {"clock_mhz": 1475, "power_w": 695, "step_ms": 2500, "step_j": 1737.5}
    assert told(found) == "1475 MHz, 695 W, 2500.00 ms and 1737.50 J a step"
    assert told(settled(samples, [], 10.0)) == "1475 MHz, 695 W"


def test_some_plans_are_withheld() -> None:
    assert len({one.name for one in PLANS}) == len(PLANS)
    withheld = [one.name for one in PLANS if one.withheld]
    assert withheld == ["llama2-13b megatron", f"llama2-13b {PLANS[1].plan.label}"]


def _moments(clocks: list[int]) -> tuple[list[tuple[int, list[float]]], list[Sample]]:
    """Replays at these clocks: GEMMs go with the clock, attention by half, copies not at all."""
    samples = [Sample(1000 * i, mhz, 700.0, 0) for i, mhz in enumerate(clocks)]
    moments = []
    for i, mhz in enumerate(clocks):
        slow = 1980 / mhz
        times = (100e3 * slow, 30e3, 50e3 * slow**0.5, 200e3 * slow)
        moments.append((1000 * i + 1, [one + EMPTY_NS for one in times]))
    return moments, samples


def test_elasticities_are_read_off_a_falling_clock() -> None:
    moments, samples = _moments([1980, 1900, 1700, 1600, 1470])
    found = elasticities(OPS, moments, samples, EMPTY_NS)
    assert found == pytest.approx({"gemm": 1.0, "attention": 0.5, "pointwise": 0.0}, abs=1e-5)


def test_a_steady_clock_tells_none() -> None:
    assert elasticities(OPS, *_moments([1980, 1965, 1980]), EMPTY_NS) == {}


def test_a_replay_is_taken_apart() -> None:
    moments, _ = _moments([1980])
    assert by_family(OPS, moments, 0, EMPTY_NS) == [(0.0, 300.0, 50.0, 30.0)]
    rows = {row["signature"][0]: row for row in op_rows(OPS, moments, EMPTY_NS)}
    assert {kind: row["median_us"] for kind, row in rows.items()} == {
        "gemm": 150.0,  # of both
        "attention": 50.0,
        "pointwise": 30.0,
    }
    assert rows["gemm"]["samples"] == 2


def test_the_clock_is_that_of_the_last_sample() -> None:
    samples = [Sample(at, mhz, 1.0, 0) for at, mhz in ((10, 1980), (20, 1800))]
    assert [clock_at(samples, at) for at in (5, 11, 20, 21, 99)] == [1980, 1980, 1980, 1800, 1800]
