"""Buckets of requests."""

from __future__ import annotations

import pytest

from api.limits import MOST_BUCKETS, Buckets
from api.problems import ProblemError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=2, burst=3, clock=clock)
    for _ in range(3):
        buckets.take("a")
    with pytest.raises(ProblemError) as caught:
        buckets.take("a")
    assert caught.value.status == 429
    assert caught.value.headers == {"Retry-After": "1"}
    buckets.take("b")
    clock.now += 0.5
    buckets.take("a")
    with pytest.raises(ProblemError):
        buckets.take("a")


def test_retry_after_is_enough() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=0.1, burst=1, clock=clock)
    buckets.take("a")
    with pytest.raises(ProblemError) as caught:
        buckets.take("a")
    clock.now += int(caught.value.headers["Retry-After"])
    buckets.take("a")


def test_a_rest_fills_the_bucket_and_no_more() -> None:
    clock = Clock()
    buckets = Buckets(rate_per_s=1, burst=2, clock=clock)
    clock.now += 1e6
    buckets.take("a")
    buckets.take("a")
    with pytest.raises(ProblemError):
        buckets.take("a")


def test_few_callers_are_remembered() -> None:
    buckets = Buckets(rate_per_s=1, burst=1)
    for number in range(MOST_BUCKETS + 10):
        buckets.take(str(number))
    assert len(buckets._levels) == MOST_BUCKETS
