"""Ratios of rounds: trimmed means, winsorized errors, Student's t and pooling, by hand."""

from __future__ import annotations

import math

import pytest

from domino_tune.search.ratios import BASELINE_RATIO, Ratio, pooled, ratio_of
from simulator.errors import InputError
from tests.unit.simulator.near import near

BASE = 10**9


def ratio(logs: list[float]) -> Ratio:
    return ratio_of([round(BASE * math.exp(log)) for log in logs], [BASE] * len(logs))


def test_a_fifth_at_each_end_is_left_out() -> None:
    """Of ten rounds, six are averaged. For the error the ends are pulled in, to 3 and 8 (1/100):
    twice the spread of (3, 3, 3, 4, 5, 6, 7, 8, 8, 8) over six tenths of √10."""
    found = ratio([0.99, 0.08, 0.01, 0.07, 0.02, 0.06, 0.03, 0.05, 0.04, 0.97])
    assert found.log == pytest.approx((0.03 + 0.04 + 0.05 + 0.06 + 0.07 + 0.08) / 6, abs=1e-6)
    pulled = [3, 3, 3, 4, 5, 6, 7, 8, 8, 8]
    mean = sum(pulled) / 10
    deviation = math.sqrt(sum((x - mean) ** 2 for x in pulled) / 9) / 100
    assert found.error == pytest.approx(deviation / (0.6 * math.sqrt(10)), rel=1e-4)
    assert found.degrees_of_freedom == 5


def test_a_few_rounds_are_averaged_whole() -> None:
    found = ratio([0.01, 0.02, 0.06])
    assert found.log == pytest.approx(0.03, abs=1e-6)
    deviation = math.sqrt((0.02**2 + 0.01**2 + 0.03**2) / 2)
    assert found.error == pytest.approx(deviation / math.sqrt(3), rel=1e-4)
    assert found.degrees_of_freedom == 2
    assert ratio([0.0, 0.5, 0.01, 0.02, -0.5]).log == pytest.approx(0.01, abs=1e-6)


def test_rounds_count_where_both_ran_and_errors_have_a_least() -> None:
    found = ratio_of([2 * BASE] * 9, [BASE] * 4)
    assert (found.value, found.error) == near(2.0, 5e-4)
    assert found.degrees_of_freedom == 3
    for plan, base in (([BASE] * 2, [BASE] * 9), ([BASE] * 3, [BASE, 0, BASE])):
        with pytest.raises(InputError, match="3 rounds or more"):
            ratio_of(plan, base)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (5, 2.57058), (30, 2.04227)])
def test_intervals_are_students(freedom: int, t: float) -> None:
    found = Ratio(log=0.1, error=0.01, degrees_of_freedom=freedom)
    assert found.half_width == pytest.approx(0.01 * t, rel=1e-4)
    assert found.low == pytest.approx(math.exp(0.1 - 0.01 * t), rel=1e-4)
    assert found.high == pytest.approx(math.exp(0.1 + 0.01 * t), rel=1e-4)
    assert BASELINE_RATIO.half_width == 0.0
    assert BASELINE_RATIO.low == BASELINE_RATIO.high == 1.0


def exact(log: float) -> Ratio:
    return Ratio(log=log, error=0.0, degrees_of_freedom=0)


def test_intervals_overlap_where_they_touch() -> None:
    wide = Ratio(log=0.0, error=0.01, degrees_of_freedom=1)
    assert wide.overlaps(exact(wide.half_width - 1e-9))
    assert exact(-wide.half_width + 1e-9).overlaps(wide)
    assert not wide.overlaps(exact(wide.half_width + 1e-9))
    assert not wide.overlaps(exact(-wide.half_width - 1e-9))
    assert exact(0.0).overlaps(exact(0.0))


def test_pooled_ratios_weigh_by_their_precision() -> None:
    sure = Ratio(log=0.10, error=0.01, degrees_of_freedom=5)
    unsure = Ratio(log=0.40, error=0.02, degrees_of_freedom=2)
    both = pooled([sure, unsure])
    assert both.log == pytest.approx((4 * 0.10 + 0.40) / 5)
    assert both.error == pytest.approx(1 / math.sqrt(1 / 0.01**2 + 1 / 0.02**2))
    assert both.degrees_of_freedom == 7
    assert pooled([unsure]) is unsure
