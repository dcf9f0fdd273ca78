"""Database: transactions on SQLite, the embedded default, or PostgreSQL, which replicas share."""

from __future__ import annotations

import math
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from domino_tune.base.errors import StorageError, UnavailableError
from domino_tune.service.sql.tables import METADATA, SCHEMA_VERSION, schema_version, tasks
from simulator.errors import DominoTuneError, InputError, unknown_name

# Errors of the database drivers, translated to StorageError or UnavailableError -------------------

Translation = tuple[type[DominoTuneError], str]
FULL: Final = (StorageError, "The database's disk is full; free some space, then try again.")
FAILS: Final = (
    StorageError,
    "The database's disk fails, so this may not be stored; check the disk, then try again.",
)
DAMAGED: Final = (StorageError, "The database is damaged; restore it from a backup.")
FORBIDDEN: Final = (
    StorageError,
    "The database's user may not make or change tables there; let it own the database.",
)
BUSY: Final = (UnavailableError, "The database is busy; try again.")
AWAY: Final = (UnavailableError, "The database does not answer; try again a little later.")
SQLITE: Final[dict[int, Translation]] = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_IOERR: FAILS,
    sqlite3.SQLITE_CANTOPEN: FAILS,
    sqlite3.SQLITE_READONLY: FAILS,
    sqlite3.SQLITE_PERM: FAILS,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_LOCKED: BUSY,
    sqlite3.SQLITE_PROTOCOL: BUSY,
}
"""By primary result code (sqlite.org/rescode)."""
POSTGRESQL: Final[dict[str, Translation]] = {
    "53100": FULL,  # disk_full
    "58": FAILS,  # system_error, io_error
    "XX001": DAMAGED,  # data_corrupted
    "XX002": DAMAGED,  # index_corrupted
    "42501": FORBIDDEN,  # insufficient_privilege
    "25P03": AWAY,  # idle_in_transaction_session_timeout
    "25006": AWAY,  # read_only_sql_transaction: a standby
    "57014": BUSY,  # query_canceled: statement_timeout
    "40": BUSY,  # serialization_failure, deadlock_detected
    "55P03": BUSY,  # lock_not_available
}
"""By SQLSTATE or its class (PostgreSQL's documentation, appendix A)."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise a driver's errors as StorageError or UnavailableError; bugs stay as they are.

    The driver's own text may name hosts and users: the log has it as the cause, callers do not.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        translation = _translation(error)
        if translation is None:
            raise
        kind, text = translation
        raise kind(text) from error
    except PoolTimeoutError as error:
        raise UnavailableError(BUSY[1]) from error


def _translation(error: DBAPIError | sqlite3.Error) -> Translation | None:
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlite_errorcode", None)
    if code is not None:
        return SQLITE.get(code & 0xFF)  # the low byte is the primary code
    state = getattr(original, "sqlstate", None) or ""
    known = POSTGRESQL.get(state) or POSTGRESQL.get(state[:2])
    # Other operational errors: no connection, shutting down, logged out, too many connections.
    return known or (AWAY if isinstance(error, OperationalError) else None)


# A SQLite file ------------------------------------------------------------------------------------
# Open it durably, and refuse one that was truncated.

BUSY_S: Final = 30.0
"""How long a writer waits for another process's transaction."""
MAGIC: Final = b"SQLite format 3\0"
TRUNCATION_CHECKS: Final = 3
"""Number of checks in a row that must find a file truncated before it is refused."""


def sqlite_engine(url: URL, pool: dict[str, Any]) -> Engine:
    """Return the engine of a file; create the file if it does not exist.

    Raise InputError for a URL that names no file, or a file that cannot be created or is not
    SQLite's; StorageError if the file was truncated.
    """
    if not url.database or url.database == ":memory:" or url.query:
        raise InputError(
            "SQLite wants a file and no options, say sqlite:///jobs.db or sqlite:////var/jobs.db."
        )
    path = Path(url.database).absolute()
    check_whole(path)
    _make(path)
    _use_wal(path)
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite", database=str(path)),
        hide_parameters=True, connect_args={"timeout": BUSY_S}, **pool,
    )  # fmt: skip
    event.listen(engine, "connect", _file_connected)
    event.listen(engine, "begin", _begin)
    return engine


def _make(path: Path) -> None:
    """Create a file that only its owner may read; SQLite gives its other files the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise InputError(
            f"Cannot open the database {str(path)!r}: {error.strerror}; choose another place."
        ) from None


def _use_wal(path: Path) -> None:
    """Switch the file to write-ahead logging; wait for others that open it at the same time."""
    end_s = time.monotonic() + BUSY_S
    while True:
        try:
            with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > end_s:
                raise
            time.sleep(0.05)
            continue
        if mode != "wal":
            raise InputError(
                f"{str(path)!r} cannot have a write-ahead log (a network file system?); put the "
                "database on a local disk, or use PostgreSQL."
            )
        return


def _file_connected(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # only ``_begin`` begins transactions
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")  # a commit that returned is on disk


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def check_whole(path: Path) -> None:
    """Raise StorageError if the file is shorter than its header says, InputError if it is not a
    SQLite database.

    SQLite itself would read zeros in place of missing pages, or start an empty database if all are
    missing.
    """
    for check in range(TRUNCATION_CHECKS):
        if check:  # another process may be moving the log into the file
            time.sleep(0.1)
        if not _is_truncated(path):
            return
    raise StorageError(
        f"The database {str(path)!r} is damaged: it is shorter than it says, and its log does not "
        "hold the rest. Restore it with its -wal file from a backup."
    )


def _is_truncated(path: Path) -> bool:
    log = Path(f"{path}-wal")
    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(100)
    if not head:
        return log.is_file() and log.stat().st_size > 0
    if not head.startswith(MAGIC):
        raise InputError(f"{str(path)!r} is no SQLite database; choose another file.")
    if head[24:28] != head[92:96]:  # the page count is not valid (sqlite.org/fileformat2)
        return False
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    pages = path.stat().st_size // page_bytes
    missing = range(pages + 1, int.from_bytes(head[28:32], "big") + 1)
    return bool(missing) and not logged_pages(log, page_bytes).issuperset(missing)


def logged_pages(log: Path, page_bytes: int) -> set[int]:
    """Return the numbers of the pages that committed transactions left in the write-ahead log.

    Source of the layout: sqlite.org/fileformat2, "The Write-Ahead Log".
    """
    committed: set[int] = set()
    if not log.is_file():
        return committed
    size, open_pages = log.stat().st_size, set[int]()
    with log.open("rb") as file:
        salts = file.read(32)[16:24]
        while len(frame := file.read(24)) == 24 and frame[8:16] == salts:
            if file.seek(page_bytes, os.SEEK_CUR) > size:
                break
            open_pages.add(int.from_bytes(frame[:4], "big"))
            if any(frame[4:8]):  # the database's size in pages, which only a commit states
                committed |= open_pages
                open_pages.clear()
    return committed


# Database -----------------------------------------------------------------------------------------
# Transactions on SQLite, the embedded default, or PostgreSQL, which replicas share.

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
        if not self._write_lock.acquire(timeout=BUSY_S):
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
    "sqlite": sqlite_engine,
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
