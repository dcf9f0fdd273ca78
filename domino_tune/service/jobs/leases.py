"""Leases: each job has one worker at a time, until its lease expires.

A worker claims a job for ``lease_s`` seconds by the database's clock, and renews the claim by
heartbeat. When a lease has expired, others may claim the job. Every claim raises the job's fence.
Every write names fence and worker, so that a worker that was stopped or slow cannot change a job
that another has claimed; a job that nobody claimed while the database was away goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from domino_tune.service.encoding import json_text
from domino_tune.service.jobs import JobProgress, JobRecord, Point
from domino_tune.service.jobs.desk import RESULT
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import UNFINISHED, artifacts, insert, jobs, now_s, points, tasks
from domino_tune.service.work import StopReason
from simulator.errors import DominoTuneError

PROFILE: Final = "profile"
"""The artifact that holds a profile's file."""
Shelve = Callable[[Connection, bytes, str], None]
"""Stores a profile's file for an owner, within a transaction."""


class LostLeaseError(DominoTuneError):
    """This worker no longer has the job: another has claimed it, or it was deleted or ended."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claimed job and its task."""

    job: JobRecord
    task: bytes


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
        self.lease_s = lease_s

    def claim(self) -> Claimed | None:
        """Claim a job that waits, or whose worker's lease expired; return None without one.

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
                        and_(
                            jobs.c.state == "running",
                            jobs.c.lease_until_s <= now_s(),
                            jobs.c.worker != self._worker,  # this one still works on it
                        ),
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
                lease_until_s=now_s() + self.lease_s,
                started_s=func.coalesce(jobs.c.started_s, now_s()),
                version=jobs.c.version + 1,
            )
            .returning(*jobs.c)
        ).one()
        task = connection.execute(
            select(tasks.c.body).where(tasks.c.digest == row.task_digest)
        ).scalar_one()
        return Claimed(job=JobRecord.of(row), task=task)

    def asked(self, held: Sequence[Claimed]) -> dict[str, StopReason | None]:
        """Return those of the jobs that are still this worker's, each with why it should end with
        the best so far."""
        ids = [one.job.id for one in held]
        wanted = select(jobs.c.id, jobs.c.fence, jobs.c.stopped_by).where(
            jobs.c.id.in_(ids), jobs.c.worker == self._worker, jobs.c.state == "running"
        )
        fences = {one.job.id: one.job.fence for one in held}
        with self._database.read() as connection:
            rows = connection.execute(wanted).all()
        return {row.id: row.stopped_by for row in rows if fences[row.id] == row.fence}

    def renew(self, claimed: Claimed) -> None:
        """Renew the lease for ``lease_s`` from now."""
        with self._database.write() as connection:
            renewed = connection.execute(
                update(jobs).where(self._ours(claimed)).values(lease_until_s=now_s() + self.lease_s)
            )
        if renewed.rowcount != 1:
            raise _lost(claimed)

    def progress(
        self, claimed: Claimed, progress: JobProgress, best: Mapping[str, Any] | None = None
    ) -> None:
        """Write the progress and, if given, the best result so far."""
        values: dict[str, Any] = {"progress": json_text(asdict(progress))}
        if best is not None:
            values["best"] = json_text(best)
        with self._database.write() as connection:
            self._change(connection, claimed, values)

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

    def release(self, claimed: Claimed, *, died: bool = False) -> None:
        """Return the job to the queue: as if it had not been claimed, or because its process
        ``died``, which counts as an attempt."""
        values: dict[str, Any] = {"state": "queued", "worker": None, "lease_until_s": None}
        if not died:
            values["attempts"] = jobs.c.attempts - 1
        with self._database.write() as connection:
            self._change(connection, claimed, values)

    def _change(self, connection: Connection, claimed: Claimed, values: Mapping[str, Any]) -> None:
        """Change the job's row, which locks it until the transaction ends."""
        changed = connection.execute(
            update(jobs).where(self._ours(claimed)).values(version=jobs.c.version + 1, **values)
        )
        if changed.rowcount != 1:
            raise _lost(claimed)

    def _ours(self, claimed: Claimed) -> ColumnElement[bool]:
        return and_(
            jobs.c.id == claimed.job.id,
            jobs.c.fence == claimed.job.fence,
            jobs.c.worker == self._worker,
            jobs.c.state == "running",
        )


def _lost(claimed: Claimed) -> LostLeaseError:
    return LostLeaseError(f"Job {claimed.job.id!r} is no longer this worker's.")
