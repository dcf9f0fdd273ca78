"""What a collective waits for memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ProfileError
from simulator.memory_queue import MemoryQueue

RATES = st.floats(min_value=0, max_value=1e5)
CTAS = st.integers(min_value=0, max_value=132)


def queue(busiest: float = 0.9, wait: float = 0.02, kind: str = "fitted") -> MemoryQueue:
    return MemoryQueue(
        attained_gb_s=4000, busiest=busiest, wait=wait, by_cta=0.03, kind=kind, error=0.04  # type: ignore[arg-type]
    )  # fmt: skip


@given(RATES, RATES, CTAS, CTAS)
def test_it_grows_with_the_rate_and_with_ctas_up_to_what_was_timed(
    one: float, other: float, few: int, many: int
) -> None:
    law = queue()
    slow, fast = sorted((one, other))
    few, many = sorted((few, many))
    assert 1 <= law.slowdown(slow, few) <= law.slowdown(fast, many) <= law.most(many)


def test_beside_an_op_that_streams_nothing_it_waits_for_nobody() -> None:
    assert queue().slowdown(0, 32) == 1


@pytest.mark.parametrize(
    "wrong", [{"busiest": 1.0}, {"busiest": -0.1}, {"wait": float("nan")}, {"kind": "guessed"}]
)
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=next(iter(wrong))):
        queue(**wrong)  # type: ignore[arg-type]
