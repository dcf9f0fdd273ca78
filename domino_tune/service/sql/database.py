"""Database: transactions on SQLite, the embedded default, or PostgreSQL, which replicas share."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    delete,
    event,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from domino_tune.base.errors import UnavailableError
from domino_tune.service.sql import sqlite
from domino_tune.service.sql.driver_errors import BUSY, translated_errors
from domino_tune.service.sql.tables import METADATA, SCHEMA_VERSION, schema_version, tasks
from simulator.errors import DominoTuneError, InputError, unknown_name

POOL: Final[dict[str, Any]] = {"pool_size": 5, "max_overflow": 15, "pool_timeout": 30}
IDLE_S: Final = 15
"""PostgreSQL ends a transaction whose client stopped for so long: its locks must not stay."""
STORED_S: Final = 5.0
TRIAL_BYTES: Final = 8 << 10
STATEMENT_S: Final = 30
"""PostgreSQL ends a statement that takes longer. Ours take milliseconds."""
LIBPQ: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Notice a connection that broke silently; seconds, but ``tcp_user_timeout`` in milliseconds."""
_SCHEMA_LOCK: Final = 0x646F6D696E6F  # "domino": replicas that start together create one schema


class Database:
    """Transactions on one database, with translated errors."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        # SQLite allows one writer and polls for it; a lock wakes the next thread at once.
        self._write_lock = threading.Lock() if engine.dialect.name == "sqlite" else None
        self._stored_s = -math.inf
        self._closed = False
        event.listen(engine, "checkin", self._given_back)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads. Raise StorageError, UnavailableError."""
        with translated_errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is durable when this returns and undone when it raises.

        Raise StorageError where the disk is full or fails (the same may be tried again),
        UnavailableError where the database is busy or away.
        """
        stored_s = -math.inf  # a transaction that fails may say that nothing can be stored
        try:
            with translated_errors(), self._locked(), self._writer.begin() as connection:
                yield connection
            stored_s = time.monotonic()
        finally:
            self._stored_s = stored_s

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._write_lock is None:
            yield
            return
        if not self._write_lock.acquire(timeout=sqlite.BUSY_S):
            raise UnavailableError(BUSY[1])
        try:
            yield
        finally:
            self._write_lock.release()

    def ping(self) -> None:
        """Raise StorageError or UnavailableError unless the database answers, and stores: where no
        transaction was stored in the last STORED_S seconds, store one that changes nothing."""
        with self.read() as connection:
            connection.execute(select(schema_version.c.version))
        if time.monotonic() - self._stored_s > STORED_S:
            self._try_to_store()

    def _try_to_store(self) -> None:
        """Store a row and delete it. SQLite would not write one that stays as it is."""
        digest = f"readiness {secrets.token_hex(16)}"
        with self.write() as connection:
            connection.execute(tasks.insert().values(digest=digest, body=bytes(TRIAL_BYTES)))
            connection.execute(delete(tasks).where(tasks.c.digest == digest))

    def close(self) -> None:
        """Close the pooled connections; one that is in use is closed when it is given back."""
        self._closed = True
        self._engine.dispose()

    def _given_back(self, connection: object, record: ConnectionPoolEntry) -> None:
        """Close what a thread that outlasts ``close`` gives back: nobody will ask for it again."""
        if self._closed:
            record.invalidate()


def open_database(url: str) -> Database:
    """Open ``sqlite:///FILE`` or ``postgresql://…``; create the tables in an empty database.

    Raise InputError for a bad URL, or a database of another program or another schema version,
    StorageError for a damaged one, UnavailableError where it does not answer.
    """
    parsed = _parse(url)
    with translated_errors():
        engine = ENGINES[parsed.get_backend_name()](parsed, POOL)
    database = Database(engine)
    try:
        with database.write() as connection:
            _prepare(connection)
    except UnavailableError as error:
        database.close()
        cause = getattr(error.__cause__, "orig", None)
        raise UnavailableError(
            f"Cannot open {parsed.render_as_string()}: {cause or error} Is it running, and may "
            "this user log in?"
        ) from error
    except DominoTuneError:
        database.close()
        raise
    return database


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # do not repeat the text: it may hold a password
        raise InputError(
            "The database must be a URL, say sqlite:///jobs.db or postgresql://user@host/name."
        ) from None
    if parsed.get_backend_name() not in ENGINES:
        raise unknown_name("database", parsed.get_backend_name(), ENGINES)
    return parsed


def postgresql_engine(url: URL, pool: dict[str, Any]) -> Engine:
    """Return the engine of a PostgreSQL server. Raise InputError where psycopg is not installed."""
    url = url.set(drivername="postgresql+psycopg", query={**LIBPQ, **url.query})
    try:
        engine = create_engine(url, hide_parameters=True, pool_pre_ping=True, **pool)
    except ModuleNotFoundError:
        raise InputError(
            "PostgreSQL needs psycopg; install it: pip install 'domino_tune[postgres]'."
        ) from None
    event.listen(engine, "connect", _connected)
    return engine


def _connected(connection: Any, record: object) -> None:
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")
    connection.execute(f"SET statement_timeout = '{STATEMENT_S}s'")
    connection.commit()


ENGINES: Final[dict[str, Callable[[URL, dict[str, Any]], Engine]]] = {
    "sqlite": sqlite.sqlite_engine,
    "postgresql": postgresql_engine,
}


def _prepare(connection: Connection) -> None:
    """Create the tables in an empty database; else check that they are ours, of our version."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    found = inspect(connection).get_table_names()
    if not found:
        METADATA.create_all(connection)
        connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))
        return
    if schema_version.name not in found:
        raise InputError(
            f"The database holds tables of something else ({found[0]}, …) and no schema_version; "
            "give domino_tune an empty one."
        )
    version = connection.scalar(select(schema_version.c.version))
    if version != SCHEMA_VERSION:
        raise InputError(
            f"The database has schema_version {version}, this program knows {SCHEMA_VERSION}; use "
            "the domino_tune that made it, or another database."
        )
