"""JobDesk: submit, read, end and delete jobs."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, func, select, update

from domino_tune.base.errors import NotFoundError, PreconditionError, QueueFullError
from domino_tune.requests.service import JobState
from domino_tune.service.encoding import json_text
from domino_tune.service.idempotency import Idempotency, claim_key, earlier_answer
from domino_tune.service.jobs import (
    EVERY,
    OPEN,
    JobFilter,
    JobRecord,
    NewJob,
    Point,
    check_id,
    new_id,
    no_such_job,
    searched,
)
from domino_tune.service.jobs.retention import Keep, lock_owner, make_room, remove_held
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import artifacts, hold, jobs, now_s, points, tasks
from simulator.errors import InputError

RESULT: Final = "result"


class JobDesk:
    """Jobs as their owners see them; ``owner`` None sees all jobs.

    ``keep``: how much an owner may store. All methods raise StorageError and UnavailableError.
    """

    def __init__(self, database: Database, keep: Keep | None = None) -> None:
        self._database = database
        self._keep = keep or Keep()

    def replayed(self, given: Idempotency) -> JobRecord | None:
        """Return the job that this key created earlier, or None. Raise KeyReuseError."""
        with self._database.read() as connection:
            earlier = earlier_answer(connection, given)
            return None if earlier is None else _get(connection, earlier, None)

    def submit(
        self, new: NewJob, idempotency: Idempotency | None = None, most_open: int | None = None
    ) -> tuple[JobRecord, bool]:
        """Queue a job durably. Return it, and whether this call created it.

        Raise KeyReuseError if the key was used with another body, QueueFullError if ``most_open``
        jobs of the owner wait or run, QuotaError if the owner's unfinished jobs, profiles and
        models leave no room for it. The oldest finished jobs are deleted to make room.
        """
        identity = new_id()
        with self._database.write() as connection:
            earlier = claim_key(connection, idempotency, identity)
            if earlier is None:
                _check_room(connection, new.owner, most_open)
                size = len(new.task) + len(new.result or b"")
                make_room(connection, new.owner, size, self._keep)
                _insert(connection, identity, new)
            return _get(connection, earlier or identity, None), earlier is None

    def get(self, identity: str, owner: str | None) -> JobRecord:
        """Return a job. Raise NotFoundError if it does not exist or belongs to another owner."""
        with self._database.read() as connection:
            return _get(connection, identity, owner)

    def page(
        self,
        owner: str | None,
        cursor: str | None = None,
        limit: int = 50,
        wanted: JobFilter = EVERY,
    ) -> tuple[tuple[JobRecord, ...], str | None]:
        """Return up to ``limit`` of the ``wanted`` jobs, newest first, and the cursor of the next
        page (None: last).

        A cursor is the last job's id, so that new jobs do not shift pages. Raise InputError for a
        bad cursor.
        """
        asked = select(jobs).where(*wanted.conditions())
        if owner is not None:
            asked = asked.where(jobs.c.owner == owner)
        if cursor is not None:
            asked = asked.where(jobs.c.id < _job_cursor(cursor))
        asked = asked.order_by(jobs.c.id.desc()).limit(limit + 1)
        with self._database.read() as connection:
            found = tuple(JobRecord.of(row) for row in connection.execute(asked))
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def set_label(
        self, identity: str, owner: str | None, label: str | None, version: int | None = None
    ) -> JobRecord:
        """Set a job's label; None removes it. Raise NotFoundError, and PreconditionError if the job
        is at another ``version``."""
        with self._database.write() as connection:
            job = _get(connection, identity, owner, lock=True)
            if version is not None and version != job.version:
                raise PreconditionError(
                    f"The job is at version {job.version}, not {version}; get it anew, then "
                    "decide again."
                )
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity)
                .values(
                    label=label, searched=searched(job.request, label), version=jobs.c.version + 1
                )
            )
            return _get(connection, identity, owner)

    def stop(self, identity: str, owner: str | None) -> JobRecord:
        """Let a job end with the best so far, or with its first result; one that has ended stays as
        it is. Raise NotFoundError."""
        with self._database.write() as connection:
            _get(connection, identity, owner)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.state.in_(OPEN), jobs.c.stopped_by.is_(None))
                .values(stopped_by="user", version=jobs.c.version + 1)
            )
            return _get(connection, identity, owner)

    def delete(self, identity: str, owner: str | None) -> None:
        """Delete a job with its results; one that runs ends. Raise NotFoundError."""
        with self._database.write() as connection:
            job = _get(connection, identity, owner, lock=True)
            remove_held(connection, [job.id])

    def result(self, identity: str) -> bytes:
        """Return the result's JSON. Raise NotFoundError unless the job is done.

        This method and those below do not check the owner: ``get`` does.
        """
        return self.artifact(identity, RESULT)

    def artifact(self, identity: str, name: str) -> bytes:
        """Return an artifact, such as the plan file. Raise NotFoundError if the job does not have
        it."""
        asked = select(artifacts.c.body).where(
            artifacts.c.job_id == check_id(identity), artifacts.c.name == name
        )
        with self._database.read() as connection:
            body: bytes | None = connection.scalar(asked)
            if body is None:
                state = _get(connection, identity, None).state
                raise NotFoundError(f"Job {identity!r} has no {name}; it is {state}.")
        return body

    def points(self, identity: str) -> tuple[Point, ...]:
        """Return the points of a sweep so far, by index."""
        asked = select(points).where(points.c.job_id == check_id(identity))
        with self._database.read() as connection:
            rows = connection.execute(asked.order_by(points.c.number))
            return tuple(Point(index=row.number, body=row.body) for row in rows)

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
    done = new.result is not None
    hold(connection, tasks.c.digest, {"digest": new.task_digest, "body": new.task})
    connection.execute(
        jobs.insert().values(
            id=identity,
            kind=new.kind,
            owner=new.owner,
            state="done" if done else "queued",
            request=json_text(new.request),
            task_digest=new.task_digest,
            attempts=0,
            fence=0,
            created_s=now_s(),
            started_s=now_s() if done else None,
            finished_s=now_s() if done else None,
            version=1,
            stored_bytes=len(new.task) + len(new.result or b""),
            searched=searched(new.request),
        )
    )
    if done:
        connection.execute(artifacts.insert().values(job_id=identity, name=RESULT, body=new.result))


def _get(
    connection: Connection, identity: str, owner: str | None, *, lock: bool = False
) -> JobRecord:
    asked = select(jobs).where(jobs.c.id == check_id(identity))
    if owner is not None:
        asked = asked.where(jobs.c.owner == owner)
    row = connection.execute(asked.with_for_update() if lock else asked).one_or_none()
    if row is None:
        raise no_such_job(identity)
    return JobRecord.of(row)


def _job_cursor(cursor: str) -> str:
    try:
        return check_id(cursor)
    except NotFoundError:
        raise InputError(f"{cursor[:64]!r} is no cursor; take `next` of the page before.") from None
