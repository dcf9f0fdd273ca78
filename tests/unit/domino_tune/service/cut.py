"""Cut the files of a SQLite database at every 4 KiB, and check what is left."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import select

from domino_tune.base.errors import StorageError
from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.sql.tables import tasks

STEP: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """The files of a database as a crash would leave them.

    ``acknowledged`` maps each job to the size of the log, in bytes, when it was acknowledged: 0 for
    jobs that had been moved into the database before.
    """

    database: bytes
    log: bytes
    acknowledged: dict[str, int]


@dataclass(kw_only=True)
class Outcome:
    """How many databases opened and how many were refused; of those that opened, which were
    damaged, and which acknowledged jobs were missing.
    """

    opened: int = 0
    refused: int = 0
    damaged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def crash(folder: Path) -> Crashed:
    """A database with jobs in its file and in its log."""
    database = open_database(f"sqlite:///{folder}/jobs.db")
    desk, log = JobDesk(database), folder / "jobs.db-wal"
    acknowledged = {desk.submit(big_job(number))[0].id: 0 for number in range(6)}
    with closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(6, 14):
        job, _ = desk.submit(big_job(number))
        acknowledged[job.id] = log.stat().st_size
    found = Crashed(
        database=(folder / "jobs.db").read_bytes(), log=log.read_bytes(), acknowledged=acknowledged
    )
    database.close()
    return found


def big_job(number: int) -> NewJob:
    """Its task fills several pages."""
    task = hashlib.sha256(b"%d" % number).hexdigest().encode() * 200
    return NewJob(kind="tune", owner="ann", request={"number": number}, task=task)


def cut_log(crashed: Crashed, folder: Path) -> Outcome:
    """The log ends anywhere, as after a crash."""
    outcome = Outcome()
    for cut in [*range(0, len(crashed.log), STEP), len(crashed.log)]:
        must = [job for job, size in crashed.acknowledged.items() if size <= cut]
        examine(lay(folder, crashed.database, crashed.log[:cut]), must, outcome)
    return outcome


def cut_database(crashed: Crashed, folder: Path) -> Outcome:
    """The database is shorter than it was; its log is whole."""
    outcome = Outcome()
    for cut in range(0, len(crashed.database), STEP):
        examine(lay(folder, crashed.database[:cut], crashed.log), crashed.acknowledged, outcome)
    return outcome


def kill_checkpoint(crashed: Crashed, folder: Path) -> Outcome:
    """The log was being moved into the database, which is still shorter than its header says."""
    moved, outcome = checkpointed(crashed, folder), Outcome()
    for cut in range(len(crashed.database), len(moved), STEP):
        examine(lay(folder, moved[:cut], crashed.log), crashed.acknowledged, outcome)
    return outcome


def cut_closed(crashed: Crashed, folder: Path) -> Outcome:
    """A database without a log is cut. (If everything is gone, it is a new one.)"""
    whole, outcome = checkpointed(crashed, folder), Outcome()
    for cut in range(STEP, len(whole), STEP):
        examine(lay(folder, whole[:cut]), crashed.acknowledged, outcome)
    return outcome


def checkpointed(crashed: Crashed, folder: Path) -> bytes:
    file = lay(folder, crashed.database, crashed.log)
    open_database(f"sqlite:///{file}").close()
    assert not Path(f"{file}-wal").exists()
    return file.read_bytes()


def lay(folder: Path, database: bytes, log: bytes = b"") -> Path:
    """Write the files; return the path of the database."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "jobs.db").write_bytes(database)
    if log:
        (folder / "jobs.db-wal").write_bytes(log)
    return folder / "jobs.db"


def examine(file: Path, must: Collection[str], outcome: Outcome) -> None:
    """Open it, and record whether everything is whole, what is missing, and that it can
    continue.
    """
    try:
        database = open_database(f"sqlite:///{file}")
    except StorageError:
        outcome.refused += 1
        return
    outcome.opened += 1
    outcome.damaged += damages(database, file)
    desk = JobDesk(database)
    found = {job.id for job in desk.page("ann", limit=200)[0]}
    outcome.lost += sorted(set(must) - found)
    assert desk.submit(big_job(99))[1]
    database.close()


def damages(database: Database, file: Path) -> Iterable[str]:
    with closing(sqlite3.connect(file)) as other:
        findings = other.execute("PRAGMA integrity_check").fetchall()
        broken = other.execute("PRAGMA foreign_key_check").fetchall()
    with database.read() as connection:
        rows = connection.execute(select(tasks)).all()
    changed = [row.digest for row in rows if hashlib.sha256(row.body).hexdigest() != row.digest]
    return [*(line for (line,) in findings if line != "ok"), *map(str, broken), *changed]
