"""The tables, the same for SQLite and PostgreSQL. Times: the database's clock, seconds since 1970.

Large bodies have tables of their own: a heartbeat rewrites a row of ``jobs``, and must not rewrite
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

SCHEMA_VERSION: Final = 6
UNFINISHED: Final = text("state IN ('queued', 'running')")
"""Jobs that may be claimed, few of all that there ever were. As text: SQLite uses the partial index
only where a query repeats its condition."""
METADATA: Final = MetaData()

schema_version: Final = Table(
    "schema_version", METADATA, Column("version", Integer, nullable=False)
)

tasks: Final = Table(
    "tasks",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""The complete input of a job, pinned; equal jobs share one."""

jobs: Final = Table(
    "jobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("task_digest", Text, ForeignKey("tasks.digest"), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("worker", Text),
    Column("lease_until_s", Double),
    Column("progress", Text),
    Column("best", Text),
    Column("error", Text),
    Column("created_s", Double, nullable=False),
    Column("started_s", Double),
    Column("finished_s", Double),
    Column("version", Integer, nullable=False),
    Column("stopped_by", Text),
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    Column("label", Text),
    Column("searched", Text, nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed')"),
    Index("jobs_by_state", "state", "owner", "id"),
    Index("jobs_unfinished", "id", sqlite_where=UNFINISHED, postgresql_where=UNFINISHED),
    Index("jobs_by_owner", "owner", "id"),
    Index("jobs_by_task", "task_digest"),
)
"""``stored_bytes``: of the job's task, points and artifacts. ``label``: its owner's
name for it. ``searched``: where a search of jobs looks (jobs/__init__.py)."""

points: Final = Table(
    "points",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Points of a sweep, each committed as soon as it is known."""

artifacts: Final = Table(
    "artifacts",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""The files of a finished job; its result is the artifact ``result``."""

idempotency: Final = Table(
    "idempotency",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_digest", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Index("idempotency_by_age", "created_s"),
)

tokens: Final = Table(
    "tokens",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("used_s", Double),
)
"""``expires_s``: never if null. ``used_s``: the last use, to a minute."""

profile_bodies: Final = Table(
    "profile_bodies",
    METADATA,
    Column("content_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("summary", Text, nullable=False),
)
"""Profiles by the id of their content. ``summary``: what lists show of one, so that they read
none."""

profiles: Final = Table(
    "profiles",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("content_id", Text, ForeignKey("profile_bodies.content_id"), nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("owner", Text),
    Index("profiles_by_content", "content_id"),
)
"""``owner``: who stored it, and whose quota it counts in."""

models: Final = Table(
    "models",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("notes", Text, nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("owner", Text),
)

duties: Final = Table(
    "duties",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("next_s", Double, nullable=False),
)
"""Duties that one replica does for all, each with the time when it is due again."""


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
