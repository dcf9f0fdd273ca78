"""Opening a database, and what its troubles are called."""

from __future__ import annotations

import resource
import socket
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from domino_tune.base.errors import StorageError, UnavailableError, with_cause
from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.sql import database as database_module
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.sql.tables import jobs, schema_version
from simulator.errors import InputError
from tests.real.domino_tune.service.made import new_job, submit
from tests.support.postgres import Postgres, running_postgres
from tests.support.processes import PATIENCE_S, wait_until

BIG = NewJob(kind="tune", owner="ann", request={}, task=b"x" * 4_000_000)


def test_what_was_written_is_there_when_opened_again(url: str, desk: JobDesk) -> None:
    job = submit(desk)
    again = open_database(url)
    again.ping()
    assert JobDesk(again).get(job.id, "ann") == job
    again.close()


def test_a_disk_that_takes_nothing_more_is_noticed_and_so_is_its_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of this process may grow for a while, as on a disk that is full."""
    monkeypatch.setattr(database_module, "STORED_S", PATIENCE_S)
    database = open_database(f"sqlite:///{tmp_path}/jobs.db")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    database.ping()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
        database.ping()  # something was stored a moment ago
        with pytest.raises(StorageError):
            JobDesk(database).submit(BIG)
        for _ in range(2):
            with pytest.raises(StorageError, match="disk"):
                database.ping()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    database.ping()
    JobDesk(database).submit(BIG)
    database.close()


def test_what_raises_is_undone(desk: JobDesk, database: Database) -> None:
    def crash() -> None:
        with database.write() as connection:
            connection.execute(update(jobs).values(owner="eve"))
            raise KeyboardInterrupt

    job = submit(desk)
    with pytest.raises(KeyboardInterrupt):
        crash()
    assert desk.get(job.id, "ann") == job


def test_another_schema_version_is_refused(url: str, database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(schema_version).values(version=99))
    with pytest.raises(InputError, match="schema_version 99, this program knows 6"):
        open_database(url)


def test_a_database_of_something_else_is_refused(url: str, database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("DROP TABLE schema_version"))
    with pytest.raises(InputError, match="tables of something else"):
        open_database(url)


def test_replicas_that_start_together_make_one_schema(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        databases = list(pool.map(open_database, [url] * 6))
    with databases[0].read() as connection:
        assert connection.scalar(select(func.count()).select_from(schema_version)) == 1
    for database in databases:
        database.close()


def test_what_is_in_use_when_the_database_is_closed_is_closed_after_use(
    postgres_url: str,
) -> None:
    database = open_database(postgres_url)
    with database.read() as connection:
        driver: Any = connection.connection.driver_connection
        database.close()
        assert connection.scalar(select(schema_version.c.version)) is not None
    assert driver.closed


def test_threads_lose_nothing(desk: JobDesk) -> None:
    with ThreadPoolExecutor(24) as pool:
        made = set(pool.map(lambda number: submit(desk, number=number).id, range(120)))
    assert {job.id for job in desk.page("ann", limit=200)[0]} == made


@pytest.mark.parametrize(
    "url",
    [
        "", "jobs.db", "mysql://u@h/d", "sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=ro",
        "sqlite:////no/such/folder/jobs.db", "sqlite:////", "postgresql://u:secret@h:port/d",
    ],
)  # fmt: skip
def test_bad_urls(url: str) -> None:
    with pytest.raises(InputError) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed; pip install 'psycopg[binary]'")
    with socket.socket() as silent:  # bound, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        url = f"postgresql://ann:secret@127.0.0.1:{silent.getsockname()[1]}/jobs"
        with pytest.raises(UnavailableError, match="Is it running") as caught:
            open_database(url)
    assert "secret" not in str(caught.value)
    assert "refused" in str(caught.value)


def test_no_such_database(postgres: Postgres) -> None:
    with pytest.raises(UnavailableError, match="does not exist"):
        open_database(postgres.url("no_such_database"))


def test_a_user_who_may_make_no_tables(postgres: Postgres, postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
    with psycopg.connect(postgres_url) as connection:  # as is the default since PostgreSQL 15
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(StorageError, match="own the database"):
        open_database(postgres_url.replace("tests@", "guest@"))


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_a_server_that_goes_and_comes_back(own_postgres: Postgres) -> None:
    database = open_database(own_postgres.new_database())
    desk = JobDesk(database)
    job = submit(desk)
    own_postgres.stop()
    with pytest.raises(UnavailableError, match="does not answer") as caught:
        desk.submit(new_job())
    assert str(own_postgres.folder) not in str(caught.value)
    own_postgres.start()
    assert desk.get(job.id, "ann") == job
    database.close()


def test_a_full_disk_of_postgresql(postgres_url: str) -> None:
    database = open_database(postgres_url)
    desk = JobDesk(database)
    job = submit(desk)
    with database.write() as connection:
        connection.execute(text(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
        ))  # fmt: skip
        connection.execute(text(
            "CREATE TRIGGER full_disk BEFORE INSERT ON jobs EXECUTE FUNCTION full_disk()"
        ))  # fmt: skip
    with pytest.raises(StorageError, match="full"):
        desk.submit(new_job())
    with database.write() as connection:
        connection.execute(text("DROP TRIGGER full_disk ON jobs"))
    second = submit(desk)
    assert desk.page("ann") == ((second, job), None)
    database.close()


def test_a_transaction_left_open_does_not_keep_its_locks(postgres_url: str) -> None:
    """PostgreSQL ends it after IDLE_S, which this test shortens."""
    database = open_database(postgres_url)
    submit(JobDesk(database))

    def ended(pid: int) -> bool:
        asked = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        with database.read() as connection:
            return bool(connection.scalar(asked, {"pid": pid}) == 0)

    def stop_within() -> None:
        with database.write() as connection:
            setting = "idle_in_transaction_session_timeout"
            assert connection.scalar(text(f"SHOW {setting}")) == f"{database_module.IDLE_S}s"
            connection.execute(select(jobs).with_for_update())
            assert Leases(database, "next").claim() is None
            pid = connection.scalar(select(func.pg_backend_pid()))
            assert pid
            connection.execute(text(f"SET LOCAL {setting} = '100ms'"))
            wait_until(lambda: ended(pid))
            connection.execute(select(jobs))

    with pytest.raises(UnavailableError):
        stop_within()
    assert Leases(database, "next").claim()
    database.close()


def test_a_broken_connection_or_an_endless_statement_is_noticed(postgres_url: str) -> None:
    database = open_database(f"{postgres_url}&tcp_user_timeout=7000")
    with database.read() as connection:
        driver = connection.connection.driver_connection
        given = driver.info.get_parameters()  # type: ignore[union-attr]
        assert given["tcp_user_timeout"] == "7000"
        assert given["keepalives_idle"] == database_module.LIBPQ["keepalives_idle"]

    def take_long() -> None:
        with database.read() as connection:
            found = connection.scalar(text("SHOW statement_timeout"))
            assert found == f"{database_module.STATEMENT_S}s"
            connection.execute(text("SET LOCAL statement_timeout = '100ms'"))
            connection.execute(select(func.pg_sleep(PATIENCE_S)))

    with pytest.raises(UnavailableError, match="busy") as caught:
        take_long()
    assert "busy" in with_cause(caught.value)
    assert "[QueryCanceled: canceling statement due to statement timeout]" in with_cause(
        caught.value
    )
    assert "pg_sleep" not in with_cause(caught.value)
    database.close()


def test_a_full_disk_of_sqlite(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    desk = JobDesk(database)
    job = submit(desk)
    with database.read() as connection:  # holds for the one connection that the pool has
        connection.exec_driver_sql("PRAGMA max_page_count = 60")
    with pytest.raises(StorageError, match="full"):
        desk.submit(BIG)
    assert desk.page("ann") == ((job,), None)
    with database.read() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert desk.submit(BIG)[1]
    database.close()


def test_sqlite_is_durable_and_private(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    with database.write() as connection:
        asked = ("synchronous", "journal_mode", "foreign_keys")
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in asked]
    assert found == [2, "wal", 1]
    for file in ("jobs.db", "jobs.db-wal"):
        assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
    database.close()


def test_another_process_holds_sqlite_for_long(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domino_tune.service.sql.database.BUSY_S", 0.2)
    database = open_database(sqlite_url)
    desk = JobDesk(database)
    holder = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(desk.submit, new_job()) for _ in range(3)]
    for one in waiting:
        with pytest.raises(UnavailableError, match="busy"):
            one.result()
    assert desk.page("ann") == ((), None)  # readers do not wait for writers
    holder.execute("ROLLBACK")
    holder.close()
    assert desk.submit(new_job())[1]
    database.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"These are notes, and longer than a page head." * 100)
    with pytest.raises(InputError, match="no SQLite database"):
        open_database(f"sqlite:///{tmp_path}/jobs.db")
