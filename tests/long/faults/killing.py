"""SIGKILL to processes of a real service at random moments, while customers use it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.long.faults.customers import AcknowledgedJob, Audit, Customers
from tests.support.dask_cluster import DaskCluster
from tests.support.load.visits import Service
from tests.support.processes import children, wait_until

UNFINISHED_JOBS: Final = 3
"""Number of jobs that customers keep unfinished."""
MAX_WAIT_S: Final = 1.5
"""Longest wait before the next kill, after all running jobs have continued."""


class KillableService:
    """A service on one database. After a kill, a new one starts on the same database."""

    def __init__(self, folder: Path, database_url: str, *options: str) -> None:
        self._folder = folder
        self._options = ("--database", database_url, *options)
        self.service = Service(folder, *self._options)

    def url(self) -> str:
        """Return the service's URL, which changes after a kill."""
        return self.service.url

    def workers(self) -> list[int]:
        """Return the ids of the processes that compute for it."""
        return children(self.service.process.pid, b"executors.child")

    def kill_api(self) -> None:
        """Kill the server, but not its workers, which end by themselves. Start a new server."""
        self.service.process.kill()
        self.service.process.wait()
        self.service = Service(self._folder, *self._options)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        return self.service.stop()


@contextmanager
def killable_service(folder: Path, database_url: str, *options: str) -> Iterator[KillableService]:
    """Run a service that may be killed, and stop it in the end."""
    target = KillableService(folder, database_url, *options)
    try:
        yield target
    finally:
        target.stop()


def kill_at_random(
    target: KillableService, kill: Callable[[random.Random], None], kills: int, seed: int
) -> Audit:
    """Call ``kill`` ``kills`` times while customers submit jobs and measurements. Then audit.

    After a kill, wait until running jobs have continued, and until those that died have ended: one
    that dies three times fails, and random kills must not have that effect.
    """
    customers, drawn = Customers(target.url), random.Random(seed)
    try:
        for _ in range(kills):
            _submit_jobs(customers)
            time.sleep(drawn.uniform(0, MAX_WAIT_S))
            before = customers.unfinished()
            kill(drawn)
            for job, shown in before:
                if shown["state"] == "running":
                    wait_until(partial(_has_continued, customers, job, shown))
        return customers.audit()
    finally:
        customers.close()


def _submit_jobs(customers: Customers) -> None:
    """Submit jobs until UNFINISHED_JOBS run, and report a measurement of every finished tune."""
    unfinished = {job.path for job, _ in customers.unfinished()}
    for job in customers.jobs:
        if job.name.startswith("tune ") and not job.measurements and job.path not in unfinished:
            customers.report_measurement(job)
    for _ in range(UNFINISHED_JOBS - len(unfinished)):
        customers.submit()


def _has_continued(customers: Customers, job: AcknowledgedJob, before: dict[str, Any]) -> bool:
    now = customers.get(job)
    if now["state"] not in ("queued", "running"):
        return True
    return now["attempts"] < 2 and any(now[name] != before[name] for name in ("state", "progress"))


def kill_worker(target: KillableService) -> Callable[[random.Random], None]:
    """Return a function that kills one of the service's own workers."""
    return lambda drawn: _kill_one(target.workers, drawn)


def kill_dask_worker(cluster: DaskCluster) -> Callable[[random.Random], None]:
    """Return a function that kills one of the cluster's workers. Its nanny starts another."""
    return lambda drawn: _kill_one(cluster.worker_pids, drawn)


def kill_api(target: KillableService) -> Callable[[random.Random], None]:
    """Return a function that kills the server."""
    return lambda drawn: target.kill_api()


def _kill_one(pids: Callable[[], list[int]], drawn: random.Random) -> None:
    with suppress(ProcessLookupError):
        os.kill(drawn.choice(wait_until(pids)), signal.SIGKILL)


def kill_after_acknowledgement(target: KillableService, times: int) -> Audit:
    """Submit a job and kill the server as soon as it is acknowledged, ``times`` times. A job that
    the next server does not know is lost."""
    customers, audit = Customers(target.url), Audit()
    try:
        for _ in range(times):
            job = customers.submit()
            target.kill_api()
            audit.jobs += 1
            if not customers.exists(job):
                audit.lost.append(job.path)
            customers.delete(job)
        return audit
    finally:
        customers.close()
