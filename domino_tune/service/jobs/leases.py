"""Leases: each job has one worker at a time, until its lease expires.

A worker claims a job for ``lease_s`` seconds by the database's clock, and renews the claim by
heartbeat. Every claim raises the job's fence. Every write names fence and worker and needs a valid
lease, so that a worker that was stopped or slow cannot change a job that another has claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update

from domino_tune.base.version import VERSION
from domino_tune.service.encoding import json_text
from domino_tune.service.jobs.desk import RESULT
from domino_tune.service.jobs.job import (
    Job,
    JobProgress,
    Point,
    dump_progress,
)
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import insert, now_s
from domino_tune.service.sql.tables import (
    UNFINISHED,
    artifacts,
    checkpoints,
    jobs,
    points,
    tasks,
)
from domino_tune.service.tasks.quantum import StopReason
from simulator.errors import DominoTuneError

PROFILE: Final = "profile"
"""The artifact that holds a profile's file."""
Shelve = Callable[[Connection, bytes, str], None]
"""Stores a profile's file for an owner, within a transaction."""


class LostLeaseError(DominoTuneError):
    """This worker no longer owns the job: its lease expired, or the job was cancelled."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claimed job: its task, and the points and the state that were committed before.

    ``checkpoint`` is None if there is no state, or another version of the program wrote it.
    """

    job: Job
    task: bytes
    points: tuple[Point, ...]
    checkpoint: bytes | None = None


class Leases:
    """The jobs that one worker holds. All methods raise StorageError and UnavailableError.

    Methods that take a ``Claimed`` write in one transaction, and raise LostLeaseError.
    """

    def __init__(
        self,
        database: Database,
        worker_name: str,
        lease_s: float = 15.0,
        shelve: Shelve | None = None,
    ) -> None:
        self._database = database
        self._shelve = shelve
        self._worker = worker_name
        self._lease_s = lease_s

    def claim(self) -> Claimed | None:
        """Claim a job that waits or whose lease expired; return None if no such job exists.

        Take the oldest one of the owner who has the fewest running jobs.
        """
        others = jobs.alias()
        running = (
            select(func.count())
            .where(others.c.owner == jobs.c.owner, others.c.state == "running")
            .scalar_subquery()
        )
        with self._database.write() as connection:
            identity = connection.scalar(
                select(jobs.c.id)
                .where(
                    UNFINISHED,
                    or_(
                        jobs.c.state == "queued",
                        and_(jobs.c.state == "running", jobs.c.lease_until_s <= now_s()),
                    ),
                )
                .order_by(running, jobs.c.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            return None if identity is None else self._take(connection, identity)

    def _take(self, connection: Connection, identity: str) -> Claimed:
        row = connection.execute(
            update(jobs)
            .where(jobs.c.id == identity)
            .values(
                state="running",
                worker=self._worker,
                attempts=jobs.c.attempts + 1,
                fence=jobs.c.fence + 1,
                lease_until_s=now_s() + self._lease_s,
                started_s=func.coalesce(jobs.c.started_s, now_s()),
                version=jobs.c.version + 1,
            )
            .returning(*jobs.c)
        ).one()
        task = connection.execute(
            select(tasks.c.body).where(tasks.c.digest == row.task_digest)
        ).scalar_one()
        known = connection.execute(
            select(points).where(points.c.job_id == identity).order_by(points.c.number)
        )
        checkpoint: bytes | None = connection.scalar(
            select(checkpoints.c.body).where(
                checkpoints.c.job_id == identity, checkpoints.c.program == VERSION
            )
        )
        return Claimed(
            job=Job.of(row),
            task=task,
            points=tuple(Point(index=point.number, body=point.body) for point in known),
            checkpoint=checkpoint,
        )

    def renew(self, claimed: Claimed) -> bool:
        """Renew the lease for ``lease_s`` from now. Return whether the job was cancelled."""
        with self._database.write() as connection:
            renewed = connection.execute(
                update(jobs)
                .where(self._held(claimed))
                .values(lease_until_s=now_s() + self._lease_s)
            )
            if renewed.rowcount == 1:
                return False
            state = connection.scalar(select(jobs.c.state).where(self._ours(claimed)))
        if state == "cancelled":
            return True
        raise _lost(claimed)

    def progress(
        self,
        claimed: Claimed,
        progress: JobProgress,
        best: Mapping[str, Any] | None = None,
        state: bytes | None = None,
    ) -> StopReason | None:
        """Write the progress and, if given, the best result so far and the state to continue from.
        Return ``user`` if somebody asked for the best so far.
        """
        values: dict[str, Any] = {"progress": dump_progress(progress)}
        if best is not None:
            values["best"] = json_text(best)
        with self._database.write() as connection:
            self._change(connection, claimed, values)
            _keep(connection, claimed, state)
            asked = select(jobs.c.stopped_by).where(jobs.c.id == claimed.job.id)
            stopped_by: StopReason | None = connection.scalar(asked)
        return stopped_by

    def add_points(self, claimed: Claimed, made: Sequence[Point]) -> None:
        """Commit points of a sweep; a point that is already stored stays as it is."""
        with self._database.write() as connection:
            self._change(connection, claimed, {})
            size = 0
            for point in made:
                stored = connection.execute(
                    insert(connection, points)
                    .values(job_id=claimed.job.id, number=point.index, body=point.body)
                    .on_conflict_do_nothing()
                    .returning(points.c.number)
                )
                size += 0 if stored.first() is None else len(point.body)
            connection.execute(
                update(jobs)
                .where(jobs.c.id == claimed.job.id)
                .values(stored_bytes=jobs.c.stored_bytes + size)
            )

    def finish(
        self,
        claimed: Claimed,
        result: bytes,
        made: Mapping[str, bytes],
        stopped_by: StopReason | None = None,
    ) -> None:
        """End the job as done; ``made``: its artifacts by name, without the result.

        ``stopped_by``: why the result covers only a part of the search; None if it covers all. A
        profile among the artifacts is stored as the owner's. Raise ConflictError if that is
        impossible.
        """
        bodies = {RESULT: result, **made}
        values = {
            "state": "done",
            "finished_s": now_s(),
            "stopped_by": stopped_by,
            "stored_bytes": jobs.c.stored_bytes + sum(map(len, bodies.values())),
        }
        with self._database.write() as connection:
            self._change(connection, claimed, values)
            connection.execute(delete(checkpoints).where(checkpoints.c.job_id == claimed.job.id))
            for name, body in bodies.items():
                connection.execute(
                    artifacts.insert().values(job_id=claimed.job.id, name=name, body=body)
                )
            if self._shelve is not None and (profile := made.get(PROFILE)) is not None:
                self._shelve(connection, profile, claimed.job.owner)

    def fail(self, claimed: Claimed, problem: Mapping[str, Any]) -> None:
        """End the job as failed; ``problem`` says why (RFC 9457)."""
        values = {"state": "failed", "error": json_text(problem), "finished_s": now_s()}
        with self._database.write() as connection:
            self._change(connection, claimed, values)
            connection.execute(delete(checkpoints).where(checkpoints.c.job_id == claimed.job.id))

    def release(self, claimed: Claimed, state: bytes | None = None) -> None:
        """Return the job to the queue as if it had not been claimed; keep its points, and ``state``
        to continue from.
        """
        values = {
            "state": "queued",
            "worker": None,
            "lease_until_s": None,
            "attempts": jobs.c.attempts - 1,
        }
        with self._database.write() as connection:
            self._change(connection, claimed, values)
            _keep(connection, claimed, state)

    def _change(self, connection: Connection, claimed: Claimed, values: Mapping[str, Any]) -> None:
        """Change the job's row, which locks it until the transaction ends."""
        changed = connection.execute(
            update(jobs).where(self._held(claimed)).values(version=jobs.c.version + 1, **values)
        )
        if changed.rowcount != 1:
            raise _lost(claimed)

    def _ours(self, claimed: Claimed) -> ColumnElement[bool]:
        return and_(
            jobs.c.id == claimed.job.id,
            jobs.c.fence == claimed.job.fence,
            jobs.c.worker == self._worker,
        )

    def _held(self, claimed: Claimed) -> ColumnElement[bool]:
        return and_(self._ours(claimed), jobs.c.state == "running", jobs.c.lease_until_s > now_s())


def _keep(connection: Connection, claimed: Claimed, state: bytes | None) -> None:
    """Store the state from which the job continues, if given."""
    if state is None:
        return
    values = {"program": VERSION, "body": state}
    connection.execute(
        insert(connection, checkpoints)
        .values(job_id=claimed.job.id, **values)
        .on_conflict_do_update(index_elements=["job_id"], set_=values)
    )


def _lost(claimed: Claimed) -> LostLeaseError:
    return LostLeaseError(f"Job {claimed.job.id!r} is no longer this worker's.")
