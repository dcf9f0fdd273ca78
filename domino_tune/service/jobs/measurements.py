"""Measurements: results that clusters measured with a tune's plan, stored durably."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, select, update

from domino_tune.base.errors import ConflictError, NotFoundError
from domino_tune.service.idempotency import Idempotency, claim_key
from domino_tune.service.jobs.job import check_id, new_id, no_such_job
from domino_tune.service.quota import Keep, check_quota
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import now_s
from domino_tune.service.sql.tables import jobs, validations
from simulator.errors import InputError

PREFIX: Final = "val"
MOST_VALIDATIONS: Final = 100
"""Most reports on one job."""
MAX_LIMIT: Final = 20
"""Most entries of a page: one report may have a MiB."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One report of measured results; ``body`` is its JSON, ``created_s`` seconds since 1970."""

    id: str
    job_id: str
    body: bytes
    created_s: float


class Measurements:
    """Validations of tunes. All methods raise StorageError and UnavailableError, and NotFoundError
    for an unknown job. They do not check the owner: ``JobDesk.get`` does. ``keep``: what an owner
    may have.
    """

    def __init__(self, database: Database, keep: Keep | None = None) -> None:
        self._database = database
        self._keep = keep or Keep()

    def add(
        self, job_id: str, body: bytes, idempotency: Idempotency | None = None
    ) -> tuple[Validation, bool]:
        """Store a report durably. Return it, and whether it is new.

        Raise KeyReuseError where the key was used with another body, ConflictError where the job
        has MOST_VALIDATIONS already, QuotaError.
        """
        identity = new_id(PREFIX)
        with self._database.write() as connection:
            # Lock the job, so that simultaneous calls are counted one after the other.
            job = select(jobs.c.owner).where(jobs.c.id == check_id(job_id, "job"))
            owner = connection.scalar(job.with_for_update())
            if owner is None:
                raise no_such_job(job_id)
            earlier = claim_key(connection, idempotency, identity)
            if earlier is None:
                _check_room(connection, job_id)
                check_quota(connection, owner, len(body), self._keep)
                _count(connection, job_id, len(body))
                connection.execute(
                    validations.insert().values(
                        id=identity, job_id=job_id, body=body, created_s=now_s()
                    )
                )
            asked = select(validations).where(validations.c.id == (earlier or identity))
            return _validation(connection.execute(asked).one()), earlier is None

    def delete(self, job_id: str, identity: str) -> None:
        """Delete a report on a job. Raise NotFoundError."""
        gone = (
            delete(validations)
            .where(validations.c.id == identity, validations.c.job_id == check_id(job_id, "job"))
            .returning(func.length(validations.c.body))
        )
        with self._database.write() as connection:
            size = connection.scalar(gone)
            if size is None:
                raise NotFoundError(f"The tune has no validation {identity[:64]!r}.")
            _count(connection, job_id, -size)

    def page(
        self, job_id: str, cursor: str | None = None, limit: int = MAX_LIMIT
    ) -> tuple[tuple[Validation, ...], str | None]:
        """Return up to ``limit`` reports on a job, oldest first, and the cursor of the next page.

        Raise InputError for a bad cursor or limit.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise InputError(f"limit must be 1 to {MAX_LIMIT}, got {limit}.")
        asked = select(validations).where(validations.c.job_id == check_id(job_id, "job"))
        if cursor is not None:
            asked = asked.where(validations.c.id > _cursor(cursor))
        asked = asked.order_by(validations.c.id).limit(limit + 1)
        with self._database.read() as connection:
            found = tuple(_validation(row) for row in connection.execute(asked))
        return found[:limit], found[limit - 1].id if len(found) > limit else None


def _check_room(connection: Connection, job_id: str) -> None:
    many = select(func.count()).where(validations.c.job_id == job_id)
    if (connection.scalar(many) or 0) >= MOST_VALIDATIONS:
        raise ConflictError(
            f"The tune has {MOST_VALIDATIONS} reports, and that is the most; tune again to send "
            "more."
        )


def _count(connection: Connection, job_id: str, more_bytes: int) -> None:
    """Add to what is stored of a job."""
    connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(stored_bytes=jobs.c.stored_bytes + more_bytes)
    )


def _cursor(cursor: str) -> str:
    try:
        return check_id(cursor, PREFIX)
    except NotFoundError:
        raise InputError(f"{cursor[:64]!r} is no cursor; take `next` of the page before.") from None


def _validation(row: Row[Any]) -> Validation:
    return Validation(id=row.id, job_id=row.job_id, body=row.body, created_s=row.created_s)
