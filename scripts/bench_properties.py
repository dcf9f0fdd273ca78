"""Properties of the simulator that the tests check on a few cases, here on thousands.

Run by scripts/bench, or alone: python scripts/bench_properties.py [--fraction 0.1]. Prints one
table; exits with 1 if a property failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from domino_tune.base.tables import Table, print_table
from tests.contracts.schedule_contract import CONTRACT, random_built
from tests.simulator.cases import KINDS
from tests.simulator.engine_checks import check_contended_dag, check_dag, check_engines_agree
from tests.simulator.memory_checks import check_peak_is_brute_force
from tests.simulator.periodic_checks import check_shortcut_is_exact


class Property(NamedTuple):
    """``check`` raises AssertionError for a seed that breaks the property; ``cases`` are run."""

    name: str
    cases: int
    check: Callable[[int], None]


def check_contract(kind: str, seed: int) -> None:
    """The whole schedule contract on one random case of ``kind``."""
    built = random_built(kind, seed)
    for check in CONTRACT:
        check(built)


def _contract_of(kind: str) -> Callable[[int], None]:
    return lambda seed: check_contract(kind, seed)


PROPERTIES = (
    Property("engines equal, contention and host: random programs", 2000, check_engines_agree),
    Property("engines equal, contention and host: random DAGs", 2000, check_contended_dag),
    Property("engines equal an independent list scheduler: random DAGs", 10_000, check_dag),
    Property("periodic shortcut equals the full simulation", 1000, check_shortcut_is_exact),
    Property("peak memory equals brute force", 1000, check_peak_is_brute_force),
    *(Property(f"schedule contract: {kind}", 120, _contract_of(kind)) for kind in KINDS),
)


class Outcome(NamedTuple):
    """Seeds that failed, and how long all of them took."""

    failed: list[int]
    seconds: float


def run(prop: Property, seeds: Iterable[int]) -> Outcome:
    """Check ``prop`` on every seed."""
    started = time.perf_counter()
    failed = []
    for seed in seeds:
        try:
            prop.check(seed)
        except AssertionError:
            failed.append(seed)
    return Outcome(failed, time.perf_counter() - started)


def table_of(outcomes: dict[Property, tuple[int, Outcome]]) -> Table:
    """One row a property; what failed is named by its first seeds."""
    rows = []
    for prop, (cases, outcome) in outcomes.items():
        seeds = ", ".join(str(seed) for seed in outcome.failed[:5])
        verdict = f"MISS: seeds {seeds}" if outcome.failed else "ok"
        failed = str(len(outcome.failed))
        rows.append([prop.name, str(cases), failed, f"{outcome.seconds:.0f}", verdict])
    return Table(
        title="Properties (tolerance 0 ns, 0 bytes, 0 FLOPs)",
        columns=["property", ">cases", ">failed", ">s", "verdict"],
        rows=rows,
    )


def main() -> int:
    """Run every property and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fraction", type=float, default=1.0, help="part of the cases to run")
    fraction = parser.parse_args().fraction
    outcomes = {}
    for prop in PROPERTIES:
        cases = max(1, round(prop.cases * fraction))
        outcomes[prop] = (cases, run(prop, range(cases)))
    print_table(table_of(outcomes))
    return int(any(outcome.failed for _, outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
