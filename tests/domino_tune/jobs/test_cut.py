"""A SQLite database that was cut anywhere opens whole, or is refused; never half."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from domino_tune.errors import StorageError
from domino_tune.jobs.database import Database, open_database
from domino_tune.jobs.desk import JobDesk
from domino_tune.jobs.job import NewJob
from domino_tune.jobs.tables import tasks

STEP = 4096


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """The files of a database as a crash would leave them.

    ``acknowledged`` maps each job to the size of the log, in bytes, when it was acknowledged: 0 for
    those that had been moved into the database before.
    """

    database: bytes
    log: bytes
    acknowledged: dict[str, int]


def big_job(number: int) -> NewJob:
    """Its task fills several pages."""
    task = hashlib.sha256(b"%d" % number).hexdigest().encode() * 200
    return NewJob(kind="tune", owner="ann", request={"number": number}, task=task)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    folder = tmp_path_factory.mktemp("crashed")
    database = open_database(f"sqlite:///{folder}/jobs.db")
    desk, log = JobDesk(database), folder / "jobs.db-wal"
    acknowledged = {desk.submit(big_job(number))[0].id: 0 for number in range(6)}
    with closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(8, 16):
        job, _ = desk.submit(big_job(number))
        acknowledged[job.id] = log.stat().st_size
    found = Crashed(
        database=(folder / "jobs.db").read_bytes(), log=log.read_bytes(), acknowledged=acknowledged
    )
    database.close()
    return found


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domino_tune.jobs.sqlite._LOOKS", 1)  # no other process is at work


def lay(folder: Path, database: bytes, log: bytes) -> str:
    """Put the two files down; returns the URL."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "jobs.db").write_bytes(database)
    (folder / "jobs.db-wal").write_bytes(log)
    return f"sqlite:///{folder}/jobs.db"


def jobs_of(database: Database, file: Path) -> set[str]:
    """Ids of all jobs, after looking that all is whole and that it can go on."""
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []
    with database.read() as connection:
        for row in connection.execute(select(tasks)):
            assert hashlib.sha256(row.body).hexdigest() == row.digest
    desk = JobDesk(database)
    found = {job.id for job in desk.page("tune", "ann", limit=200)[0]}
    assert desk.submit(big_job(99))[1]
    return found


def cuts(data: bytes) -> Iterator[int]:
    return iter(range(0, len(data), STEP))


def test_a_cut_log_keeps_what_was_acknowledged_before_the_cut(
    crashed: Crashed, tmp_path: Path
) -> None:
    lost_least = set(crashed.acknowledged)
    for cut in [*cuts(crashed.log), len(crashed.log)]:
        url = lay(tmp_path / "cut", crashed.database, crashed.log[:cut])
        database = open_database(url)
        found = jobs_of(database, tmp_path / "cut/jobs.db")
        database.close()
        must = {job for job, size in crashed.acknowledged.items() if size <= cut}
        assert must <= found <= set(crashed.acknowledged)
        lost_least = set(crashed.acknowledged) - found
    assert not lost_least


def test_a_cut_database_opens_whole_or_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    refused = 0
    for cut in cuts(crashed.database):
        url = lay(tmp_path / "cut", crashed.database[:cut], crashed.log)
        try:
            database = open_database(url)
        except StorageError:
            refused += 1
            assert (tmp_path / "cut/jobs.db-wal").read_bytes() == crashed.log
            continue
        assert jobs_of(database, tmp_path / "cut/jobs.db") == set(crashed.acknowledged)
        database.close()
    assert refused > 1


def test_a_checkpoint_that_was_killed_is_done_again(crashed: Crashed, tmp_path: Path) -> None:
    """Its file is shorter than it says, but the log holds the rest."""
    open_database(lay(tmp_path / "cut", crashed.database, crashed.log)).close()
    moved = (tmp_path / "cut/jobs.db").read_bytes()
    assert len(moved) > len(crashed.database)
    for cut in range(len(crashed.database), len(moved), STEP):
        database = open_database(lay(tmp_path / "cut", moved[:cut], crashed.log))
        assert jobs_of(database, tmp_path / "cut/jobs.db") == set(crashed.acknowledged)
        database.close()


def test_a_cut_database_without_a_log_is_refused(crashed: Crashed, tmp_path: Path) -> None:
    open_database(lay(tmp_path / "whole", crashed.database, crashed.log)).close()
    assert not (tmp_path / "whole/jobs.db-wal").exists()
    whole = (tmp_path / "whole/jobs.db").read_bytes()
    for cut in range(STEP, len(whole), STEP):
        (tmp_path / "cut.db").write_bytes(whole[:cut])
        with pytest.raises(StorageError, match="shorter than it says"):
            open_database(f"sqlite:///{tmp_path}/cut.db")
