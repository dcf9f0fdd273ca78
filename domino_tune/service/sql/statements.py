"""Statements that differ between SQLite and PostgreSQL: the clock, INSERT … ON CONFLICT, locks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Connection, Double, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class now_s(FunctionElement[float]):
    """Seconds since 1970 by the database's own clock, when the statement runs.

    PostgreSQL's ``now()`` is when the transaction began, before it waited for locks.
    """

    type = Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now(element: now_s, compiler: SQLCompiler, **options: Any) -> str:
    # Days since 4714 BC as a double: exact to 0.04 ms. unixepoch('subsec') needs SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now(element: now_s, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


def insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that supports ON CONFLICT."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def hold(connection: Connection, key: Column[str], values: Mapping[str, Any]) -> None:
    """Store ``values`` where their ``key`` is not there, and let nobody delete that row until the
    transaction ends."""
    held = select(key).where(key == values[key.name]).with_for_update(read=True, key_share=True)
    while True:
        made = insert(connection, key.table).values(**values).on_conflict_do_nothing()
        connection.execute(made)
        if connection.scalar(held) is not None:  # None: it was just deleted
            return
