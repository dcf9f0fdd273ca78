"""Kill processes of a service, and print what is lost: scripts/faults [NAME ...]

Start a PostgreSQL server and a Dask cluster for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

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
    ">not byte-equal",
)  # fmt: skip
Row = tuple[str, ...]


def run(name: str, folder: Path, kind: str, url: str, times: int, seed: int) -> tuple[Row, Audit]:
    """Run one scenario. Return its row and its audit."""
    folder.mkdir()
    audit = SCENARIOS[name](folder, url, times, seed)
    counts = (audit.jobs, audit.points, audit.measurements, len(audit.lost), len(audit.unequal))
    return (name, kind, str(times), *map(str, counts)), audit


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 when something is lost or differs."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(SCENARIOS),
                        help=f"processes (default: all: {', '.join(SCENARIOS)})")  # fmt: skip
    parser.add_argument("--kills", type=int, default=35, help="kills of each on each database")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    options = parser.parse_args(argv)
    lines, total = [], Audit()
    with tempfile.TemporaryDirectory() as folder, running_postgres() as server:
        for name in options.names:
            for kind in ("SQLite", "PostgreSQL"):
                place = Path(folder) / f"{name} {kind}".replace(" ", "-")
                url = f"sqlite:///{place}.db" if kind == "SQLite" else server.new_database()
                row, audit = run(name, place, kind, url, options.kills, options.seed)
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
