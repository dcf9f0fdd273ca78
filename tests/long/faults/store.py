"""Damage the database of jobs, and print what is lost: python -m tests.long.faults.store

Start a PostgreSQL server for it. Report as skipped what is not installed.
"""

from __future__ import annotations

import errno
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from domino_tune.base.tables import Table, print_table
from tests.real.api.asked import SMALL
from tests.real.domino_tune.service import failing, owners
from tests.support import cut
from tests.support.cut import Crashed, Outcome
from tests.support.postgres import running_postgres
from tests.support.service import serving

Row = tuple[str, str, str]
OWNERS, EACH = 8, 100
CUTS: dict[str, Callable[[Crashed, Path], Outcome]] = {
    "log cut at every 4 KiB": cut.cut_log,
    "file cut at every 4 KiB, log whole": cut.cut_database,
    "checkpoint killed at every 4 KiB": cut.kill_checkpoint,
    "closed file cut at every 4 KiB": cut.cut_closed,
}
FAILURES = {"fails once": (errno.EIO, False), "finds the disk full": (errno.ENOSPC, True)}


def owners_row(name: str, url: str) -> Row:
    worked = owners.work_together(url, OWNERS, EACH)
    twice = len(worked.finished) - len(set(worked.finished))
    never = len(set(worked.submitted) - set(worked.finished))
    return (
        f"{name}: {OWNERS} owners, {EACH} jobs each",
        f"{len(worked.submitted)} jobs",
        f"{twice} finished twice, {never} never",
    )


def cut_rows(folder: Path) -> Iterator[Row]:
    (folder / "crashed").mkdir()
    crashed = cut.crash(folder / "crashed")
    for name, make in CUTS.items():
        outcome = make(crashed, folder / "cut")
        yield (
            f"SQLite: {name}",
            f"{outcome.opened + outcome.refused} cuts",
            f"{outcome.opened} opened, {outcome.refused} refused, {len(outcome.damaged)} damaged, "
            f"{len(outcome.lost)} acknowledged jobs lost",
        )


def failing_rows(folder: Path) -> Iterator[Row]:
    if failing.compiler() is None:
        yield "SQLite: n-th write or sync fails", "skipped", failing.MISSING
        return
    library = failing.make_library(folder)
    for name, (error, lasting) in FAILURES.items():
        (folder / name).mkdir()
        counts = failing.fail_each_call(library, folder / name, error, lasting)
        yield (
            f"SQLite: n-th write or sync {name}",
            f"{counts['failed']} calls",
            f"{counts['refused']} steps refused (507), 0 partial, all continued",
        )


def full_row(folder: Path) -> Row:
    """No file of a service may grow for a while, as on a disk that is full."""
    (folder / "full").mkdir()
    with serving(folder / "full", workers=0) as service, service.client() as client:

        def told() -> str:
            made = client.post("/v1/tunes", json=SMALL).status_code
            return f"POST {made} and /readyz {client.get('/readyz').status_code}"

        pid, kind = service.process.pid, resource.RLIMIT_FSIZE
        usual = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (0, usual[1]))
        meanwhile = told()
        resource.prlimit(pid, kind, usual)
        return "SQLite: disk full for a while", "1 service", f"{meanwhile}, then {told()}"


def rows(folder: Path) -> Iterator[Row]:
    yield owners_row("SQLite", f"sqlite:///{folder}/owners.db")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_postgres())
            yield owners_row("PostgreSQL", server.new_database())
        except pytest.skip.Exception as reason:
            yield "PostgreSQL", "skipped", str(reason)
    yield from cut_rows(folder)
    yield from failing_rows(folder)
    yield full_row(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = ("fault", "how often", "result")
        print_table(Table(columns=columns, rows=list(rows(Path(folder)))))


if __name__ == "__main__":
    main()
