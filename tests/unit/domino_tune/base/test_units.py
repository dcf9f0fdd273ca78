""""""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domino_tune.base.units import (
    Dimension,
    QuantityError,
    half_spread,
    median_interval,
    parse_quantity,
)

ALL: tuple[Dimension, ...] = ("factor", "number", "bytes", "bytes/s", "s", "flop/s")


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("2x", 2, "factor"), ("1.5×", 1.5, "factor"), ("50%", 0.5, "factor"), ("16", 16, "number"),
        ("1gbit", 1.25e8, "bytes/s"), ("400Gb/s", 5e10, "bytes/s"), ("400Gbps", 5e10, "bytes/s"),
        ("400GB/s", 4e11, "bytes/s"), ("1 GiB/s", 2**30, "bytes/s"), ("5us", 5e-6, "s"),
        ("5 µs", 5e-6, "s"), ("1e3ns", 1e-6, "s"), ("80GiB", 80 * 2**30, "bytes"),
        (".5kB", 500, "bytes"), ("900TFLOPS", 9e14, "flop/s"), ("1PFLOP/s", 1e15, "flop/s"),
    ],
)  # fmt: skip
def test_values_and_units(text: str, value: float, dimension: Dimension) -> None:
    found = parse_quantity("it", text, ALL)
    assert found.value == pytest.approx(value)
    assert found.dimension == dimension


@pytest.mark.parametrize(
    "text", ["", "x", "-2x", "nan", "inf", "1e999x", "2 apples", "1gbit2", "1..5x", "0x10", "2xx"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(QuantityError, match=r"^it (cannot|must).*2x, 5us"):
        parse_quantity("it", text, ("factor", "s"))


def test_another_dimension_is_refused() -> None:
    with pytest.raises(QuantityError, match="5us"):
        parse_quantity("link_latency", "5GB/s", ("factor", "s"))


# Intervals of medians -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "ranks"),  # 1-based, from the binomial distribution
    [(1, (1, 1)), (3, (1, 3)), (5, (1, 5)), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)),
     (20, (6, 15)), (100, (40, 61))],
)  # fmt: skip
def test_ranks_are_those_of_the_sign_test(count: int, ranks: tuple[int, int]) -> None:
    assert median_interval(range(1, count + 1)) == ranks


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_sample_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high


def test_it_covers_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(15)])
        hits += low <= 0.6931 <= high
    assert hits / 2000 >= 0.94


def test_half_spread() -> None:
    assert half_spread([1.0, 3.0]) == 1.0
    assert half_spread([5.0] * 9) == 0.0
