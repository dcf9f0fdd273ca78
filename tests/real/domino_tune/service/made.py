"""Jobs and the like for tests of the store."""

from __future__ import annotations

import json

from domino_tune.requests.service import JobKind
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.jobs import JobRecord, NewJob
from domino_tune.service.jobs.desk import JobDesk


def new_job(owner: str = "ann", kind: JobKind = "tune", number: int = 0) -> NewJob:
    """A job whose task is its number."""
    return NewJob(
        kind=kind, owner=owner, request={"number": number}, task=json.dumps(number).encode()
    )


def submit(desk: JobDesk, owner: str = "ann", kind: JobKind = "tune", number: int = 0) -> JobRecord:
    return desk.submit(new_job(owner, kind, number))[0]


def key(
    name: str = "key-1", body: bytes = b"{}", owner: str = "ann", route: str = "tunes"
) -> Idempotency:
    return Idempotency.of(owner, route, name, body)
