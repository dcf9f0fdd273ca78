"""A SQLite file: open it durably, and refuse one that was truncated."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event

from domino_tune.base.errors import StorageError
from simulator.errors import InputError

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
    event.listen(engine, "connect", _connected)
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


def _connected(connection: sqlite3.Connection, record: object) -> None:
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
