"""Properties of the simulator: tests check each on a few random cases, this on thousands."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from lab.verdict import verdict
from tests.unit.contracts.schedule_contract import CONTRACT, random_built
from tests.unit.simulator.cases import KINDS
from tests.unit.simulator.engine_checks import (
    check_admission,
    check_contended_dag,
    check_dag,
    check_engines_agree,
)
from tests.unit.simulator.memory_checks import check_peak_is_brute_force
from tests.unit.simulator.periodic_checks import check_shortcut_is_exact

SHOWN_SEEDS: Final = 5


class Property(NamedTuple):
    """``check`` raises AssertionError for a seed that breaks the property."""

    name: str
    cases: int
    check: Callable[[int], None]


def check_contract(kind: str, seed: int) -> None:
    """Check the whole schedule contract on one random case of ``kind``."""
    built = random_built(kind, seed)
    for check in CONTRACT:
        check(built)


PROPERTIES: Final = (
    Property("engines equal, contention and host: random programs", 2000, check_engines_agree),
    Property("engines equal, contention and host: random DAGs", 2000, check_contended_dag),
    Property("engines equal an independent list scheduler: random DAGs", 10_000, check_dag),
    Property("engines equal an independent scheduler with admission", 2000, check_admission),
    Property("periodic shortcut equals the full simulation", 1000, check_shortcut_is_exact),
    Property("peak memory equals brute force", 1000, check_peak_is_brute_force),
    *(Property(f"schedule contract: {kind}", 120, partial(check_contract, kind)) for kind in KINDS),
)


def properties(fraction: float = 1.0) -> list[Table]:
    """Check ``fraction`` of the cases of each property, and at least one."""
    rows, notes = [], []
    for name, all_cases, check in PROPERTIES:
        cases = max(1, round(fraction * all_cases))
        started_s = time.perf_counter()
        failed = [seed for seed in range(cases) if not _holds(check, seed)]
        took_s = time.perf_counter() - started_s
        rows.append((name, str(cases), str(len(failed)), f"{took_s:.0f}", verdict(not failed)))
        if failed:
            notes.append(f"{name}: failed for seeds {failed[:SHOWN_SEEDS]}")
    return [
        Table(
            title="Properties (tolerance 0 ns, 0 bytes, 0 FLOPs)",
            columns=("property", ">cases", ">failed", ">s", "verdict"),
            rows=rows,
            notes=notes,
        )
    ]


def _holds(check: Callable[[int], None], seed: int) -> bool:
    try:
        check(seed)
    except AssertionError:
        return False
    return True
