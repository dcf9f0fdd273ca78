"""Prints what kill -9 costs a service: python -m tests.faults.kills [NAME ...] [--short] ...

Starts its own PostgreSQL and Dask cluster; what is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from domino_tune.base.tables import Table, print_line, print_table
from tests.dask_cluster import dask_cluster
from tests.faults.customers import Kept
from tests.faults.killing import (
    at_random,
    kill_api,
    kill_dask_worker,
    kill_worker,
    killed,
    right_after_accepting,
)
from tests.postgres import running_postgres

WORKERS: Final = ("--workers", "2")
Play = Callable[[Path, str, int, int], Kept]


def worker(folder: Path, url: str, times: int, seed: int) -> Kept:
    """A pool worker at random moments."""
    with killed(folder, url, *WORKERS) as target:
        return at_random(target, kill_worker(target), times, seed)


def api(folder: Path, url: str, times: int, seed: int) -> Kept:
    """The API process at random moments."""
    with killed(folder, url, *WORKERS) as target:
        return at_random(target, kill_api(target), times, seed)


def dask_worker(folder: Path, url: str, times: int, seed: int) -> Kept:
    """One of two Dask workers at random moments."""
    with (
        dask_cluster(folder / "dask") as cluster,
        killed(folder, url, *WORKERS, "--executor", cluster.address) as target,
    ):
        return at_random(target, kill_dask_worker(cluster), times, seed)


def after_202(folder: Path, url: str, times: int, seed: int) -> Kept:
    """The API process right after 202."""
    with killed(folder, url, "--workers", "1") as target:
        return right_after_accepting(target, times)


PLAYS: Final[dict[str, Play]] = {
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
    """URLs of new databases, by kind."""
    made = 0

    def sqlite() -> str:
        nonlocal made
        made += 1
        return f"sqlite:///{folder}/{made}.db"

    found = {"SQLite": sqlite}
    with ExitStack() as stack:
        try:
            found["PostgreSQL"] = stack.enter_context(running_postgres()).new_database
        except pytest.skip.Exception as reason:
            print_line(f"skipped: {reason}")
        yield found


def rows(names: Sequence[str], kills: int, after: int, seed: int) -> Iterator[tuple[Row, Kept]]:
    """A row for each thing killed on each database."""
    at_random_names = [name for name in PLAYS if PLAYS[name] is not after_202]
    with tempfile.TemporaryDirectory() as folder, databases(Path(folder)) as kinds:
        rest, cells = kills, len(at_random_names) * len(kinds)
        for name in PLAYS:
            for number, (kind, new_url) in enumerate(kinds.items()):
                times = -(-after // len(kinds))
                if PLAYS[name] is not after_202:
                    times = -(-rest // cells)
                    rest, cells = rest - times, cells - 1
                if name not in names or not times:
                    continue
                place = Path(folder) / f"{name} {kind}".replace(" ", "-")
                place.mkdir()
                yield play(name, place, kind, new_url(), times, seed + number)


def play(name: str, folder: Path, kind: str, url: str, times: int, seed: int) -> tuple[Row, Kept]:
    """One row, and what it counts."""
    began_s = time.monotonic()
    try:
        kept = PLAYS[name](folder, url, times, seed)
    except pytest.skip.Exception as reason:
        return (name, kind, "skipped", *("",) * 5, str(reason)), Kept()
    counts = (kept.jobs, kept.points, kept.measurements, len(kept.lost), len(kept.unequal))
    seconds = f"{time.monotonic() - began_s:.0f}"
    return (name, kind, str(times), *map(str, counts), seconds), kept


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 when something was lost or differs."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"what is killed (default: all: {', '.join(PLAYS)})")  # fmt: skip
    parser.add_argument("--kills", type=int, default=200, help="at random moments, all together")
    parser.add_argument("--after", type=int, default=100, help="right after 202, all together")
    parser.add_argument("--short", action="store_true", help="6 and 4 kills: whether it works")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args(argv)
    if options.short:
        options.kills, options.after = 6, 4
    made, total = [], Kept()
    for row, kept in rows(options.names or list(PLAYS), options.kills, options.after, options.seed):
        print_line("  ".join(row), sys.stderr)
        made.append(row)
        total.add(kept)
    note = "Jobs, points of sweeps and measurements: those that had been acknowledged."
    print_table(Table(columns=COLUMNS, rows=made, notes=(note,)))
    for text in (*total.lost, *total.unequal):
        print_line(text, sys.stderr)
    return int(bool(total.lost or total.unequal))


if __name__ == "__main__":
    sys.exit(main())
