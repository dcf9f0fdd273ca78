"""Intervals of medians."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domino_tune.base.medians import half_spread, median_interval


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
