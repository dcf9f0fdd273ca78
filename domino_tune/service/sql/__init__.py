"""SQL: the service's database, SQLite or PostgreSQL. May import store and below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from domino_tune.base.errors import needed_for
from domino_tune.store.files import home_dir, make_folder

if TYPE_CHECKING:
    from domino_tune.service.sql.database import Database


# The location of the service's database, and how the command line opens it ------------------------

FILE: Final = "service.db"
SQLITE: Final = "sqlite:///"


def database_url(given: str | None) -> str:
    """Return ``given``; without it the URL of a SQLite file in the user's home, whose folder is
    made."""
    if given:
        return given
    make_folder(home_dir(), "set DOMINO_TUNE_HOME to another folder, or give --database")
    return f"{SQLITE}{home_dir().absolute() / FILE}"


def is_there(given: str | None) -> bool:
    """Return whether ``given``, or the file in the user's home, may be a database: False where it
    is a SQLite file that nobody made yet."""
    scheme, _, place = (given or f"{SQLITE}{home_dir().absolute() / FILE}").partition(":///")
    return scheme.partition("+")[0] != "sqlite" or Path(place).exists()


def open_service_database(given: str | None, *, what: str) -> Database:
    """Open the database for ``what``. Raise InputError for a bad URL, another schema or a missing
    extra."""
    with needed_for(what):
        from domino_tune.service.sql.database import open_database

        return open_database(database_url(given))
