"""Runners of jobs, and functions that wait for their results."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any

from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.job import Job, JobKind, NewJob
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.runner import LIMIT_S, Runner
from domino_tune.service.sql.database import Database
from tests.support.processes import PATIENCE_S
from tests.support.tasks import undisturbed


class Watched(Executor):
    """Passes calls on, and remembers which tasks they were for."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.tasks: list[bytes] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(args[0])
        return self.executor.submit(fn, *args, **kwargs)


@asynccontextmanager
async def running(
    database: Database,
    executor: Executor,
    name: str = "one",
    budget_s: float = 0.0,
    limit_s: float = LIMIT_S,
) -> AsyncIterator[Runner]:
    leases = Leases(database, name, lease_s=PATIENCE_S)
    runner = Runner(leases, executor, 2, budget_s=budget_s, limit_s=limit_s)
    await runner.start()
    try:
        yield runner
    finally:
        await runner.drain(PATIENCE_S)


def submit(desk: JobDesk, task: bytes, owner: str = "ann") -> Job:
    kind: JobKind = "sweep" if task.startswith(b'{"kind":"sweep"') else "tune"
    return desk.submit(NewJob(kind=kind, owner=owner, request={}, task=task))[0]


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


async def finished(desk: JobDesk, jobs: Mapping[str, bytes]) -> None:
    """Wait until every job is done; each must have the bytes of an undisturbed one."""
    await until(lambda: all(desk.get(identity, None).ended for identity in jobs))
    for identity, task in jobs.items():
        job = desk.get(identity, None)
        assert (job.state, job.error) == ("done", None)
        expected = undisturbed(task)
        assert desk.result(identity) == expected.result
        for name, body in expected.artifacts.items():
            assert desk.artifact(identity, name) == body


async def ended(desk: JobDesk, job: Job) -> tuple[Job, dict[str, Any]]:
    """Wait until a job is done; return it and its result."""
    await until(lambda: desk.get(job.id, None).ended)
    found = desk.get(job.id, None)
    assert (found.state, found.error) == ("done", None)
    return found, json.loads(desk.result(job.id))
