"""What clusters measured of a tune's plan: durable before it is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, select

from domino_tune.jobs.database import Database
from domino_tune.jobs.idempotency import Idempotency, claim_key
from domino_tune.jobs.job import check_id, new_id, no_such_job
from domino_tune.jobs.sql import now_s
from domino_tune.jobs.tables import jobs, validations

PREFIX: Final = "val"


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One report of measured results; ``body`` is its JSON, ``created_s`` seconds since 1970."""

    id: str
    job_id: str
    body: bytes
    created_s: float


class Measurements:
    """Validations of tunes. All raise StorageError and UnavailableError, and NotFoundError for a
    job that is not there; whether it is the caller's is for ``JobDesk.get`` to say.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, job_id: str, body: bytes, idempotency: Idempotency | None = None
    ) -> tuple[Validation, bool]:
        """Keep a report; on return it is durable. The report, and whether it was new.

        Raises KeyReuseError where the key came before with another body.
        """
        identity = new_id(PREFIX)
        with self._database.write() as connection:
            there = select(jobs.c.id).where(jobs.c.id == check_id(job_id, "job"))
            if connection.scalar(there) is None:
                raise no_such_job(job_id)
            before = claim_key(connection, idempotency, identity)
            if before is None:
                connection.execute(
                    validations.insert().values(
                        id=identity, job_id=job_id, body=body, created_s=now_s()
                    )
                )
            asked = select(validations).where(validations.c.id == (before or identity))
            return _validation(connection.execute(asked).one()), before is None

    def list(self, job_id: str) -> tuple[Validation, ...]:
        """All reports on a job, oldest first."""
        asked = select(validations).where(validations.c.job_id == check_id(job_id, "job"))
        with self._database.read() as connection:
            found = connection.execute(asked.order_by(validations.c.id))
            return tuple(_validation(row) for row in found)


def _validation(row: Row[Any]) -> Validation:
    return Validation(id=row.id, job_id=row.job_id, body=row.body, created_s=row.created_s)
