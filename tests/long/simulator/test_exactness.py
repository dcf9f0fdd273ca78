"""What the unit ring checks on a few random cases, on thousands: to the nanosecond and byte."""

from __future__ import annotations

from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("check", "cases"),
    [
        (check_engines_agree, 2000), (check_contended_dag, 2000), (check_dag, 10_000),
        (check_admission, 2000), (check_shortcut_is_exact, 1000),
        (check_peak_is_brute_force, 1000), (check_space_bounds, 3000),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)  # fmt: skip
def test_random_cases(check: Callable[[int], None], cases: int) -> None:
    for seed in range(cases):
        check(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_keep_the_contract(kind: str) -> None:
    for seed in range(120):
        built = random_built(kind, seed)
        for check in CONTRACT:
            check(built)
