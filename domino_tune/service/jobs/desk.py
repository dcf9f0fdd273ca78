"""JobDesk: submit, read, end and delete jobs."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import Connection, Row, delete, func, select, update

from domino_tune.base.errors import ConflictError, NotFoundError, QueueFullError
from domino_tune.service.encoding import json_text
from domino_tune.service.idempotency import Idempotency, claim_key, earlier_answer
from domino_tune.service.jobs.job import (
    OPEN,
    Job,
    JobState,
    NewJob,
    Point,
    check_id,
    new_id,
    no_such_job,
)
from domino_tune.service.jobs.listing import EVERY, JobFilter, searched
from domino_tune.service.jobs.retention import make_room, remove_jobs
from domino_tune.service.quota import Keep, lock_owner
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import hold, now_s
from domino_tune.service.sql.tables import artifacts, checkpoints, jobs, points, tasks
from simulator.errors import InputError

PREFIX: Final = "job"
RESULT: Final = "result"
MAX_LIMIT: Final = 200
"""Most entries of a page."""
_INDEX: Final = re.compile(r"[0-9]{1,9}")


class JobDesk:
    """Jobs as their owners see them; ``owner`` None sees all jobs.

    ``keep``: how much an owner may store. All methods raise StorageError and UnavailableError.
    """

    def __init__(self, database: Database, keep: Keep | None = None) -> None:
        self._database = database
        self._keep = keep or Keep()

    def replayed(self, given: Idempotency) -> Job | None:
        """Return the job that this key created earlier, or None. Raise KeyReuseError."""
        with self._database.read() as connection:
            earlier = earlier_answer(connection, given)
            return None if earlier is None else _get(connection, earlier, None)

    def submit(
        self,
        new: NewJob,
        idempotency: Idempotency | None = None,
        most_open: int | None = None,
    ) -> tuple[Job, bool]:
        """Queue a job durably. Return it, and whether this call created it.

        Raise KeyReuseError if the key was used with another body, QueueFullError if ``most_open``
        jobs of the owner wait or run, QuotaError if the owner's unfinished jobs, profiles and
        models leave no room for it. The oldest finished jobs are deleted to make room.
        """
        identity = new_id(PREFIX)
        with self._database.write() as connection:
            earlier = claim_key(connection, idempotency, identity)
            if earlier is None:
                _check_room(connection, new.owner, most_open)
                make_room(connection, new.owner, len(new.task), self._keep)
                _insert(connection, identity, new)
            return _get(connection, earlier or identity, None), earlier is None

    def get(self, identity: str, owner: str | None) -> Job:
        """Return a job. Raise NotFoundError if it does not exist or belongs to another owner."""
        with self._database.read() as connection:
            return _get(connection, identity, owner)

    def page(
        self,
        owner: str | None,
        cursor: str | None = None,
        limit: int = 50,
        wanted: JobFilter = EVERY,
    ) -> tuple[tuple[Job, ...], str | None]:
        """Return up to ``limit`` of the ``wanted`` jobs, newest first, and the cursor of the next
        page (None: last).

        A cursor is the last job's id, so that new jobs do not shift pages. Raise InputError for a
        bad cursor or limit.
        """
        asked = select(jobs).where(*wanted.conditions())
        if owner is not None:
            asked = asked.where(jobs.c.owner == owner)
        if cursor is not None:
            asked = asked.where(jobs.c.id < _job_cursor(cursor))
        asked = asked.order_by(jobs.c.id.desc()).limit(_checked(limit) + 1)
        with self._database.read() as connection:
            found = tuple(Job.of(row) for row in connection.execute(asked))
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def set_label(self, identity: str, owner: str | None, label: str | None) -> Job:
        """Set a job's label; None removes it. Raise NotFoundError."""
        with self._database.write() as connection:
            job = _get(connection, identity, owner)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity)
                .values(
                    label=label,
                    searched=searched(job.request, label),
                    version=jobs.c.version + 1,
                )
            )
            return _get(connection, identity, owner)

    def cancel(self, identity: str, owner: str | None) -> Job:
        """Cancel a job; one that has ended stays as it is. Raise NotFoundError."""
        with self._database.write() as connection:
            _get(connection, identity, owner)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.state.in_(OPEN))
                .values(state="cancelled", finished_s=now_s(), version=jobs.c.version + 1)
            )
            connection.execute(delete(checkpoints).where(checkpoints.c.job_id == identity))
            return _get(connection, identity, owner)

    def finish(self, identity: str, owner: str | None) -> Job:
        """Let a job end with the best so far, or with its first result; one that has ended stays as
        it is. Raise NotFoundError.
        """
        with self._database.write() as connection:
            _get(connection, identity, owner)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.state.in_(OPEN), jobs.c.stopped_by.is_(None))
                .values(stopped_by="user", version=jobs.c.version + 1)
            )
            return _get(connection, identity, owner)

    def delete(self, identity: str, owner: str | None) -> None:
        """Delete a job that has ended, with its results. Raise NotFoundError, and ConflictError if
        it is still queued or running.
        """
        with self._database.write() as connection:
            job = _get(connection, identity, owner)
            if not job.ended:
                raise ConflictError(
                    f"The job is {job.state}: only what has ended can be deleted; cancel it first."
                )
            remove_jobs(connection, [identity], wait=True)

    def result(self, identity: str) -> bytes:
        """Return the result's JSON. Raise NotFoundError unless the job is done.

        This method and those below do not check the owner: ``get`` does.
        """
        return self.artifact(identity, RESULT)

    def artifact(self, identity: str, name: str) -> bytes:
        """Return an artifact, such as the plan file. Raise NotFoundError if the job does not have
        it.
        """
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
        """Return the points of a sweep so far, by index, and the cursor of the next page.

        Raise InputError for a bad cursor or limit.
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
        """Return the number of all owners' jobs by state, without states that no job is in."""
        asked = select(jobs.c.state, func.count().label("many")).group_by(jobs.c.state)
        with self._database.read() as connection:
            return {row.state: row.many for row in connection.execute(asked)}


def _check_room(connection: Connection, owner: str, most: int | None) -> None:
    """Raise QueueFullError if the owner has ``most`` open jobs.

    Call this in the transaction that adds the job: otherwise simultaneous calls exceed ``most``.
    """
    if most is None:
        return
    lock_owner(connection, owner)
    asked = select(func.count()).where(jobs.c.owner == owner, jobs.c.state.in_(OPEN))
    length = connection.scalar(asked) or 0
    if length >= most:
        raise QueueFullError(
            f"You have {length} jobs that are not finished, and {most} is the most; wait for one, "
            "or cancel one."
        )


def _insert(connection: Connection, identity: str, new: NewJob) -> None:
    hold(connection, tasks.c.digest, {"digest": new.task_digest, "body": new.task})
    connection.execute(
        jobs.insert().values(
            id=identity,
            kind=new.kind,
            owner=new.owner,
            state="queued",
            request=json_text(new.request),
            task_digest=new.task_digest,
            attempts=0,
            fence=0,
            created_s=now_s(),
            version=1,
            stored_bytes=len(new.task),
            searched=searched(new.request),
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
