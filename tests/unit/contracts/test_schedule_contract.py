"""One contract for every strategy, order and weight-gradient placement, on random cases."""

from __future__ import annotations

from functools import cache

import pytest

from tests.unit.contracts.schedule_contract import CONTRACT, Built, Check, random_built
from tests.unit.simulator.cases import KINDS

CASES = 14
BLOCK = 7


@cache
def cases(kind: str, first: int) -> tuple[Built, ...]:
    """A block of the first cases of a kind, shared by all tests."""
    return tuple(random_built(kind, seed) for seed in range(first, first + BLOCK))


@pytest.mark.sampled("kind", "check")
@pytest.mark.parametrize("first", range(0, CASES, BLOCK))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_every_schedule(kind: str, check: Check, first: int) -> None:
    for built in cases(kind, first):
        check(built)
