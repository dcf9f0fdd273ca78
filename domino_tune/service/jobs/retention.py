"""Retention: delete finished jobs that are old or too many, and bodies that nothing refers to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from domino_tune.base.errors import QuotaError
from domino_tune.service.jobs import ENDED
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import (
    artifacts,
    duties,
    idempotency,
    insert,
    jobs,
    models,
    now_s,
    points,
    profile_bodies,
    profiles,
    tasks,
)

# Quotas -------------------------------------------------------------------------------------------
# How long finished jobs are kept, and how much of an owner is stored.

DAY_S: Final = 24 * 3600.0
MIB: Final = 1 << 20
_OWNER_LOCK: Final = 0x7175
"""First half of the advisory lock that serializes what an owner adds on PostgreSQL."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Limits of each owner: finished jobs stay for ``seconds``, at most ``jobs`` of them; jobs,
    profiles and models take at most ``size_bytes`` together."""

    seconds: float = 30 * DAY_S
    jobs: int = 1000
    size_bytes: int = 2048 * MIB


def lock_owner(connection: Connection, owner: str) -> None:
    """Let other transactions that add something of ``owner`` wait until this one ends: what they
    count must not change before they add to it."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(select(func.pg_advisory_xact_lock(_OWNER_LOCK, func.hashtext(owner))))


def stored_bytes(connection: Connection, owner: str) -> int:
    """Return the bytes that are stored of an owner."""
    in_jobs = select(func.sum(jobs.c.stored_bytes)).where(jobs.c.owner == owner)
    in_bodies = select(func.sum(func.length(profile_bodies.c.body))).join(profiles)
    in_profiles = in_bodies.where(profiles.c.owner == owner)
    in_models = select(func.sum(func.length(models.c.body))).where(models.c.owner == owner)
    return sum(int(connection.scalar(one) or 0) for one in (in_jobs, in_profiles, in_models))


def check_quota(connection: Connection, owner: str, more_bytes: int, keep: Keep) -> None:
    """Raise QuotaError where ``more_bytes`` of an owner exceed what is kept; lock the owner."""
    lock_owner(connection, owner)
    stored = stored_bytes(connection, owner)
    if stored + more_bytes > keep.size_bytes:
        raise QuotaError(
            f"You have {stored / MIB:,.1f} MiB stored, and {keep.size_bytes / MIB:,.0f} MiB is the "
            f"most; this needs {more_bytes / MIB:,.1f} MiB. Delete jobs, profiles or models that "
            "you do not need any more."
        )


# Retention ----------------------------------------------------------------------------------------

PERIOD_S: Final = 300.0
"""Time between two collections, across all replicas."""
_DUTY: Final = "retention"
_AT_ONCE: Final = 50
"""Most jobs or bodies that one transaction deletes, because others wait for it on SQLite."""
_PARTS: Final = (points, artifacts)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Numbers of deleted jobs and bodies."""

    jobs: int = 0
    bodies: int = 0


class Retention:
    """Deletes what exceeds ``keep``. All methods raise StorageError and UnavailableError."""

    def __init__(self, database: Database, keep: Keep, period_s: float = PERIOD_S) -> None:
        self._database = database
        self._keep = keep
        self.period_s = period_s

    def collect_if_due(self) -> Collected | None:
        """Collect unless a replica did within the period; then return None.

        If a replica dies during a collection, the next collection does the rest.
        """
        with self._database.write() as connection:
            connection.execute(
                insert(connection, duties).values(name=_DUTY, next_s=0.0).on_conflict_do_nothing()
            )
            claimed = connection.execute(
                update(duties)
                .where(duties.c.name == _DUTY, duties.c.next_s <= now_s())
                .values(next_s=now_s() + self.period_s)
            )
        return self.collect() if claimed.rowcount else None

    def collect(self) -> Collected:
        """Delete the jobs that exceed ``keep``, then unused tasks and profile bodies."""
        old = jobs.c.finished_s < now_s() - self._keep.seconds
        gone = self._delete_jobs(select(jobs.c.id).where(_ended(), old))
        gone += self._delete_jobs(_beyond(self._keep))
        bodies = self._delete_unused(tasks, tasks.c.digest, jobs.c.task_digest)
        bodies += self._delete_unused(
            profile_bodies, profile_bodies.c.content_id, profiles.c.content_id
        )
        return Collected(jobs=gone, bodies=bodies)

    def _delete_jobs(self, asked: Select[Any]) -> int:
        deleted = 0
        while True:
            with self._database.write() as connection:
                found = list(connection.scalars(asked.order_by("id").limit(_AT_ONCE)))
                deleted += (gone := remove_jobs(connection, found))
            if gone < _AT_ONCE:
                return deleted

    def _delete_unused(self, table: Table, key: Column[str], user: Column[str]) -> int:
        """Delete the rows of ``table`` whose ``key`` occurs in no ``user``.

        Lock them first, then check again: a transaction that starts to use one also locks it
        (``hold`` in sql/tables.py).
        """
        unused = ~exists().where(user == key)
        deleted = 0
        while True:
            with self._database.write() as connection:
                found = list(
                    connection.scalars(
                        select(key).where(unused).limit(_AT_ONCE).with_for_update(skip_locked=True)
                    )
                )
                connection.execute(delete(table).where(key.in_(found), unused))
            deleted += len(found)
            if len(found) < _AT_ONCE:
                return deleted


def remove_jobs(connection: Connection, ids: Collection[str]) -> int:
    """Delete those of the jobs that have ended, with everything that belongs to them; skip those
    that another transaction locks. Return how many."""
    held = select(jobs.c.id).where(jobs.c.id.in_(ids), _ended())
    found = list(connection.scalars(held.with_for_update(skip_locked=True)))
    remove_held(connection, found)
    return len(found)


def remove_held(connection: Connection, found: Collection[str]) -> None:
    """Delete jobs that this transaction has locked, with everything that belongs to them, and the
    keys that they were made with: these are free for a new job."""
    for part in _PARTS:
        connection.execute(delete(part).where(part.c.job_id.in_(found)))
    owners = select(jobs.c.owner).where(jobs.c.id.in_(found))
    connection.execute(
        delete(idempotency).where(idempotency.c.owner.in_(owners), idempotency.c.answer.in_(found))
    )
    connection.execute(delete(jobs).where(jobs.c.id.in_(found)))


def make_room(connection: Connection, owner: str, more_bytes: int, keep: Keep) -> None:
    """Delete the oldest finished jobs of an owner until ``more_bytes`` fit. Raise QuotaError if
    that is not enough."""
    lock_owner(connection, owner)
    over = stored_bytes(connection, owner) + more_bytes - keep.size_bytes
    if over > 0:
        oldest = select(jobs.c.id, jobs.c.stored_bytes).where(jobs.c.owner == owner, _ended())
        ids: list[str] = []
        for row in connection.execute(oldest.order_by(jobs.c.id)):
            if over <= 0:
                break
            ids.append(row.id)
            over -= row.stored_bytes
        remove_jobs(connection, ids)
        check_quota(connection, owner, more_bytes, keep)


def _ended() -> ColumnElement[bool]:
    return jobs.c.state.in_(ENDED)


def _beyond(keep: Keep) -> Select[Any]:
    """Select the finished jobs beyond the newest ones that are kept for each owner."""
    owner, newest = jobs.c.owner, jobs.c.id.desc()
    size = func.sum(jobs.c.stored_bytes)
    ranked = (
        select(
            jobs.c.id,
            func.row_number().over(partition_by=owner, order_by=newest).label("place"),
            size.over(partition_by=owner, order_by=newest).label("size"),
        )
        .where(_ended())
        .subquery()
    )
    too_many = or_(ranked.c.place > keep.jobs, ranked.c.size > keep.size_bytes)
    return select(ranked.c.id).where(too_many)
