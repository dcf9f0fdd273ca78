"""Where jobs are handed in, looked up and called off."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import Connection, Row, func, select, update

from domino_tune.base.errors import NotFoundError, QueueFullError
from domino_tune.service.idempotency import Idempotency, answered, claim_key
from domino_tune.service.job import (
    OPEN,
    Job,
    JobKind,
    JobState,
    NewJob,
    Point,
    check_id,
    dump,
    new_id,
    no_such_job,
)
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import insert, now_s
from domino_tune.service.sql.tables import artifacts, jobs, points, tasks
from simulator.errors import InputError

PREFIX: Final = "job"
RESULT: Final = "result"
MAX_LIMIT: Final = 200
"""Most entries of a page."""
_QUEUE_LOCK: Final = 0x7175
"""First half of the advisory locks that owners' hands-in take on PostgreSQL."""
_INDEX: Final = re.compile(r"[0-9]{1,9}")


class JobDesk:
    """Jobs, as their owners see them; ``owner`` None sees everybody's.

    All methods raise StorageError and UnavailableError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def replayed(self, given: Idempotency) -> Job | None:
        """The job that this key made before. Raises KeyReuseError."""
        with self._database.read() as connection:
            before = answered(connection, given)
            return None if before is None else _get(connection, before, None)

    def submit(
        self,
        new: NewJob,
        idempotency: Idempotency | None = None,
        most_open: int | None = None,
    ) -> tuple[Job, bool]:
        """Queue a job; on return it is durable. The job, and whether it was made just now.

        Raises KeyReuseError where the key came before with another body, QueueFullError where
        ``most_open`` of the owner's jobs wait or run.
        """
        identity = new_id(PREFIX)
        with self._database.write() as connection:
            before = claim_key(connection, idempotency, identity)
            if before is None:
                _check_room(connection, new.owner, most_open)
                _insert(connection, identity, new)
            return _get(connection, before or identity, None), before is None

    def get(self, identity: str, owner: str | None) -> Job:
        """Raises NotFoundError where there is none, or it is another owner's."""
        with self._database.read() as connection:
            return _get(connection, identity, owner)

    def page(
        self, kind: JobKind, owner: str | None, cursor: str | None = None, limit: int = 50
    ) -> tuple[tuple[Job, ...], str | None]:
        """Up to ``limit`` jobs, newest first, and the cursor of the next page (None: no more).

        A cursor is the last job's id, so that jobs that come in meanwhile shift nothing. Raises
        InputError for a cursor or a limit that is none.
        """
        asked = select(jobs).where(jobs.c.kind == kind)
        if owner is not None:
            asked = asked.where(jobs.c.owner == owner)
        if cursor is not None:
            asked = asked.where(jobs.c.id < _job_cursor(cursor))
        asked = asked.order_by(jobs.c.id.desc()).limit(_checked(limit) + 1)
        with self._database.read() as connection:
            found = tuple(Job.of(row) for row in connection.execute(asked))
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def cancel(self, identity: str, owner: str | None) -> Job:
        """Call a job off; one that has ended stays as it is. Raises NotFoundError."""
        with self._database.write() as connection:
            _get(connection, identity, owner)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.state.in_(OPEN))
                .values(state="cancelled", finished_s=now_s(), version=jobs.c.version + 1)
            )
            return _get(connection, identity, owner)

    def result(self, identity: str) -> bytes:
        """The result's JSON. Raises NotFoundError unless the job is done.

        ``identity`` of this method and those below comes from ``get``, which knows the owner.
        """
        return self.artifact(identity, RESULT)

    def artifact(self, identity: str, name: str) -> bytes:
        """Say, the plan file. Raises NotFoundError where the job did not make it (yet)."""
        asked = select(artifacts.c.body).where(
            artifacts.c.job_id == check_id(identity, PREFIX), artifacts.c.name == name
        )
        with self._database.read() as connection:
            body: bytes | None = connection.scalar(asked)
            if body is None:
                state = _get(connection, identity, None).state
                raise NotFoundError(f"Job {identity!r} has no {name}; it is {state}.")
        return body

    def points(
        self, identity: str, cursor: str | None = None, limit: int = MAX_LIMIT
    ) -> tuple[tuple[Point, ...], str | None]:
        """Points of a sweep that are known, by index, and the cursor of the next page.

        Raises InputError for a cursor or a limit that is none.
        """
        asked = select(points).where(points.c.job_id == check_id(identity, PREFIX))
        if cursor is not None:
            if not _INDEX.fullmatch(cursor):
                raise _no_cursor(cursor)
            asked = asked.where(points.c.number > int(cursor))
        asked = asked.order_by(points.c.number).limit(_checked(limit) + 1)
        with self._database.read() as connection:
            found = tuple(_point(row) for row in connection.execute(asked))
        return found[:limit], str(found[limit - 1].index) if len(found) > limit else None

    def counts(self) -> dict[JobState, int]:
        """How many jobs of everybody are in each state that any is in."""
        asked = select(jobs.c.state, func.count().label("many")).group_by(jobs.c.state)
        with self._database.read() as connection:
            return {row.state: row.many for row in connection.execute(asked)}


def _check_room(connection: Connection, owner: str, most: int | None) -> None:
    """Belongs to the transaction that adds the job, so that many at one moment exceed nothing."""
    if most is None:
        return
    if connection.dialect.name == "postgresql":  # SQLite's writers come one by one anyway
        connection.execute(select(func.pg_advisory_xact_lock(_QUEUE_LOCK, func.hashtext(owner))))
    asked = select(func.count()).where(jobs.c.owner == owner, jobs.c.state.in_(OPEN))
    length = connection.scalar(asked) or 0
    if length >= most:
        raise QueueFullError(
            f"You have {length} jobs that are not finished, and {most} is the most; wait for one, "
            "or cancel one."
        )


def _insert(connection: Connection, identity: str, new: NewJob) -> None:
    connection.execute(
        insert(connection, tasks)
        .values(digest=new.task_digest, body=new.task)
        .on_conflict_do_nothing()
    )
    connection.execute(
        jobs.insert().values(
            id=identity,
            kind=new.kind,
            owner=new.owner,
            state="queued",
            request=dump(new.request),
            task_digest=new.task_digest,
            attempts=0,
            fence=0,
            created_s=now_s(),
            version=1,
        )
    )


def _get(connection: Connection, identity: str, owner: str | None) -> Job:
    asked = select(jobs).where(jobs.c.id == check_id(identity, PREFIX))
    if owner is not None:
        asked = asked.where(jobs.c.owner == owner)
    row = connection.execute(asked).one_or_none()
    if row is None:
        raise no_such_job(identity)
    return Job.of(row)


def _point(row: Row[tuple[object, ...]]) -> Point:
    return Point(index=row.number, body=row.body)


def _job_cursor(cursor: str) -> str:
    try:
        return check_id(cursor, PREFIX)
    except NotFoundError:
        raise _no_cursor(cursor) from None


def _no_cursor(cursor: str) -> InputError:
    return InputError(f"{cursor[:64]!r} is no cursor; take `next` of the page before.")


def _checked(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise InputError(f"limit must be 1 to {MAX_LIMIT}, got {limit}.")
    return limit
