"""Kill processes of a service and take away what it needs; print what is lost, what it says, and
how soon a job ends: scripts/faults [NAME ...]

Start PostgreSQL servers and Dask clusters for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from domino_tune.base.tables import Table, print_line, print_table
from lab.verdict import count_verdicts, table, verdict
from simulator.errors import unknown_name
from tests.long.faults.customers import Audit
from tests.long.faults.killing import (
    kill_after_acknowledgement,
    kill_api,
    kill_at_random,
    kill_dask_worker,
    kill_worker,
    killable_service,
)
from tests.long.faults.outages import OUTAGES
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
OUTAGE: Final = "what happens|what must hold|>target|>measured|verdict"
NOTE: Final = "Jobs, points of sweeps and measurements: those that the service acknowledged."
Row = tuple[str, ...]


def run(name: str, folder: Path, kind: str, url: str, times: int, seed: int) -> tuple[Row, Audit]:
    """Run one scenario. Return its row and its audit."""
    folder.mkdir()
    began_s = time.monotonic()
    audit = SCENARIOS[name](folder, url, times, seed)
    counts = (audit.jobs, audit.points, audit.measurements, len(audit.lost), len(audit.unequal))
    return (name, kind, *map(str, (times, *counts, round(time.monotonic() - began_s)))), audit


def killed(names: Sequence[str], folder: Path, kills: int, seed: int) -> tuple[Table, Audit]:
    """Run scenarios on both databases. Return their table, and what was lost in all."""
    lines, total = list[Row](), Audit()
    with running_postgres() as server:
        for name in names:
            for kind in ("SQLite", "PostgreSQL"):
                place = folder / f"{name} {kind}".replace(" ", "-")
                url = f"sqlite:///{place}.db" if kind == "SQLite" else server.new_database()
                row, audit = run(name, place, kind, url, kills, seed)
                print_line("  ".join(row), sys.stderr)
                lines.append(row)
                total.add(audit)
    return Table(
        title=f"kill -9, {kills} times each", columns=COLUMNS, rows=lines, notes=(NOTE,)
    ), total


def outages(names: Sequence[str], folder: Path) -> Table:
    """Run outages. Return their table."""
    rows = list[Row]()
    for name in names:
        title, play = OUTAGES[name]
        (place := folder / name).mkdir()
        print_line(title, sys.stderr)
        for check in play(place):
            rows.append((title, *check[:3], verdict(check.ok)))
            title = ""
    return table("Outages, and ends that somebody asks for", OUTAGE, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables. Return 1 when something is lost, differs, or does not hold."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    every = [*OUTAGES, *SCENARIOS]
    parser.add_argument("names", nargs="*", metavar="NAME", default=every,
                        help=f"faults (default: all: {', '.join(every)})")  # fmt: skip
    parser.add_argument("--kills", type=int, default=35, help="kills of each on each database")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    options, tables, total = parser.parse_args(argv), list[Table](), Audit()
    for name in options.names:
        if name not in every:
            parser.error(str(unknown_name("fault", name, every)))
    print_line(f"The machine's load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    with tempfile.TemporaryDirectory() as folder:
        if what := [name for name in options.names if name in OUTAGES]:
            tables.append(outages(what, Path(folder)))
            print_table(tables[-1])
        if kills := [name for name in options.names if name in SCENARIOS]:
            made, total = killed(kills, Path(folder), options.kills, options.seed)
            print_table(made)
    for text in (*total.lost, *total.unequal):
        print_line(text, sys.stderr)
    met, missed = count_verdicts(tables)
    print_line(
        f"{met} ok, {missed} missed; {len(total.lost)} lost, {len(total.unequal)} not byte-equal; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return int(bool(total.lost or total.unequal or missed))


if __name__ == "__main__":
    sys.exit(main())
