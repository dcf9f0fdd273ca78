"""Errors of the database drivers, translated to StorageError or UnavailableError."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from domino_tune.base.errors import StorageError, UnavailableError
from simulator.errors import DominoTuneError

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
