"""One contract for every strategy, order and weight-gradient placement, on random cases."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contracts.schedule_contract import CONTRACT, Built, Check, random_built
from tests.simulator.cases import KINDS

CASES = 14


@cache
def cases(kind: str) -> tuple[Built, ...]:
    """The first cases of a kind, shared by all tests."""
    return tuple(random_built(kind, seed) for seed in range(CASES))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_every_schedule(kind: str, check: Check) -> None:
    for built in cases(kind):
        check(built)
