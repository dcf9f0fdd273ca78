"""Kill processes of a service, and print what is lost: scripts/faults [NAME ...]

Start a PostgreSQL server and a Dask cluster for it. Report as skipped what is not installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from domino_tune.base.tables import Table, print_line, print_table
from tests.long.faults.customers import Audit
from tests.long.faults.killing import (
    kill_after_acknowledgement,
    kill_api,
    kill_at_random,
    kill_dask_worker,
    kill_worker,
    killable_service,
)
from tests.support.dask_cluster import dask_cluster
from tests.support.postgres import running_postgres

WORKERS: Final = ("--workers", "2")
Scenario = Callable[[Path, str, int, int], Audit]


def worker(folder: Path, url: str, times: int, seed: int) -> Audit:
    """Kill a pool worker at random moments."""
    with killable_service(folder, url, *WORKERS) as target:
        return kill_at_random(target, kill_worker(target), times, seed)


def api(folder: Path, url: str, times: int, seed: int) -> Audit:
    """Kill the API process at random moments."""
    with killable_service(folder, url, *WORKERS) as target:
        return kill_at_random(target, kill_api(target), times, seed)


def dask_worker(folder: Path, url: str, times: int, seed: int) -> Audit:
    """Kill one of two Dask workers at random moments."""
    with (
        dask_cluster(folder / "dask") as cluster,
        killable_service(folder, url, *WORKERS, "--executor", cluster.address) as target,
    ):
        return kill_at_random(target, kill_dask_worker(cluster), times, seed)


def after_202(folder: Path, url: str, times: int, seed: int) -> Audit:
    """Kill the API process right after it answered 202."""
    with killable_service(folder, url, "--workers", "1") as target:
        return kill_after_acknowledgement(target, times)


SCENARIOS: Final[dict[str, Scenario]] = {
    "pool worker": worker,
    "API": api,
    "Dask worker": dask_worker,
    "API right after 202": after_202,
}
COLUMNS: Final = (
    "kill -9 of", "database", ">kills", ">jobs", ">points", ">measurements", ">lost",
    ">not byte-equal", ">seconds",
)  # fmt: skip
Row = tuple[str, ...]


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, Callable[[], str]]]:
    """Yield by kind a function that returns the URL of a new database."""
    numbers = count(1)
    found: dict[str, Callable[[], str]] = {
        "SQLite": lambda: f"sqlite:///{folder}/{next(numbers)}.db"
    }
    with ExitStack() as stack:
        try:
            found["PostgreSQL"] = stack.enter_context(running_postgres()).new_database
        except pytest.skip.Exception as reason:
            print_line(f"skipped: {reason}")
        yield found


def rows(names: Sequence[str], kills: int, after: int, seed: int) -> Iterator[tuple[Row, Audit]]:
    """Run the named scenarios on each kind of database. Yield a row and the audit of each run.

    ``kills`` are spread evenly over the runs at random moments, ``after`` over those after 202.
    """
    with tempfile.TemporaryDirectory() as folder, databases(Path(folder)) as kinds:
        kills_left, runs_left = kills, (len(SCENARIOS) - 1) * len(kinds)
        for name in SCENARIOS:
            for number, (kind, new_url) in enumerate(kinds.items()):
                times = -(-after // len(kinds))
                if SCENARIOS[name] is not after_202:
                    times = -(-kills_left // runs_left)
                    kills_left, runs_left = kills_left - times, runs_left - 1
                if name not in names or not times:
                    continue
                place = Path(folder) / f"{name} {kind}".replace(" ", "-")
                place.mkdir()
                yield run(name, place, kind, new_url(), times, seed + number)


def run(name: str, folder: Path, kind: str, url: str, times: int, seed: int) -> tuple[Row, Audit]:
    """Run one scenario. Return its row and its audit."""
    began_s = time.monotonic()
    try:
        audit = SCENARIOS[name](folder, url, times, seed)
    except pytest.skip.Exception as reason:
        return (name, kind, "skipped", *("",) * 5, str(reason)), Audit()
    counts = (audit.jobs, audit.points, audit.measurements, len(audit.lost), len(audit.unequal))
    seconds = f"{time.monotonic() - began_s:.0f}"
    return (name, kind, str(times), *map(str, counts), seconds), audit


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 when something is lost or differs."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"processes (default: all: {', '.join(SCENARIOS)})")  # fmt: skip
    parser.add_argument("--kills", type=int, default=200, help="number of kills at random moments")
    parser.add_argument("--after", type=int, default=100, help="number of kills right after 202")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    options = parser.parse_args(argv)
    lines, total = [], Audit()
    names = options.names or list(SCENARIOS)
    for row, audit in rows(names, options.kills, options.after, options.seed):
        print_line("  ".join(row), sys.stderr)
        lines.append(row)
        total.add(audit)
    note = "Jobs, points of sweeps and measurements: those that the service acknowledged."
    print_table(Table(columns=COLUMNS, rows=lines, notes=(note,)))
    for text in (*total.lost, *total.unequal):
        print_line(text, sys.stderr)
    return int(bool(total.lost or total.unequal))


if __name__ == "__main__":
    sys.exit(main())
