"""What the unit ring checks on a few random cases, on thousands: to the nanosecond and byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.unit.contracts.schedule_contract import CONTRACT, random_built
from tests.unit.simulator.bound_checks import check_space_bounds
from tests.unit.simulator.cases import KINDS
from tests.unit.simulator.engine_checks import (
    check_admission,
    check_contended_dag,
    check_dag,
    check_engines_agree,
)
from tests.unit.simulator.memory_checks import check_peak_is_brute_force
from tests.unit.simulator.periodic_checks import check_shortcut_is_exact

CASES: Final[dict[Callable[[int], None], int]] = {
    check_engines_agree: 2000, check_contended_dag: 2000, check_dag: 10_000,
    check_admission: 2000, check_shortcut_is_exact: 1000, check_peak_is_brute_force: 1000,
    check_space_bounds: 3000,
}  # fmt: skip
"""Check -> random cases."""
PART: Final = 250
"""Cases of one test, so that all cores have some to the end."""


@pytest.mark.parametrize(
    ("check", "first"),
    [(check, first) for check, cases in CASES.items() for first in range(0, cases, PART)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_random_cases(check: Callable[[int], None], first: int) -> None:
    for seed in range(first, first + PART):
        check(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_keep_the_contract(kind: str) -> None:
    for seed in range(120):
        built = random_built(kind, seed)
        for check in CONTRACT:
            check(built)
