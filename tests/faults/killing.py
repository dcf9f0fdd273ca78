"""kill -9 of a real service's processes at random moments, while customers use it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.load.process import Service
from tests.dask_cluster import DaskCluster, children
from tests.faults.customers import Customers, Kept, Promised

AT_WORK: Final = 3
"""Jobs that customers keep going."""
LONGEST_WAIT_S: Final = 1.5
"""A kill comes so long after the one before, at most, or after what that one broke has gone on."""
PATIENCE_S: Final = 120


class Killed:
    """A service on one database, which is started anew where it was killed."""

    def __init__(self, folder: Path, database_url: str, *options: str) -> None:
        self._folder = folder
        self._options = ("--database", database_url, *options)
        self.service = Service.start(folder, *self._options)

    def url(self) -> str:
        """Where it is now."""
        return self.service.url

    def workers(self) -> list[int]:
        """The processes that compute for it."""
        return children(self.service.process.pid, b"spawn_main")

    def kill_api(self) -> None:
        """SIGKILL to the server alone, and a new one on the same database. Its workers end by
        themselves."""
        self.service.process.kill()
        self.service.process.wait()
        self.service = Service.start(self._folder, *self._options)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self.service.stop()


@contextmanager
def killed(folder: Path, database_url: str, *options: str) -> Iterator[Killed]:
    """A service to be killed, and stopped in the end."""
    target = Killed(folder, database_url, *options)
    try:
        yield target
    finally:
        target.stop()


def at_random(target: Killed, kill: Callable[[random.Random], None], kills: int, seed: int) -> Kept:
    """Kill ``kills`` times while jobs are handed in, looked at and measured; then hold the service
    to all it promised.

    After a kill, what was running goes on first: a slice whose workers are killed twice counts as
    poison, and random kills must not look like that.
    """
    customers, drawn = Customers(target.url), random.Random(seed)
    try:
        for _ in range(kills):
            _keep_going(customers)
            time.sleep(drawn.uniform(0, LONGEST_WAIT_S))
            before = customers.unfinished()
            kill(drawn)
            _gone_on(customers, before)
        return customers.hold_to_it()
    finally:
        customers.close()


def _keep_going(customers: Customers) -> None:
    """There are AT_WORK jobs, and every tune that is done has a measurement."""
    unfinished = {job.path for job, _ in customers.unfinished()}
    for job in customers.promised:
        if job.name.startswith("tunes") and not job.measurements and job.path not in unfinished:
            customers.measure(job)
    for _ in range(AT_WORK - len(unfinished)):
        customers.hand_in()


def _gone_on(customers: Customers, before: list[tuple[Promised, dict[str, Any]]]) -> None:
    """Wait until all that was running has got further."""
    end_s = time.monotonic() + PATIENCE_S
    for job, plain in before:
        while plain["state"] == "running" and _same(customers.look(job), plain):
            assert time.monotonic() < end_s, f"{job.path} does not go on"
            time.sleep(0.05)


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return all(now[name] == then[name] for name in ("state", "progress"))


def kill_worker(target: Killed) -> Callable[[random.Random], None]:
    """Kills one of the service's own workers."""
    return lambda drawn: _kill_one(target.workers, drawn)


def kill_dask_worker(cluster: DaskCluster) -> Callable[[random.Random], None]:
    """Kills one of the cluster's workers; its nanny starts another."""
    return lambda drawn: _kill_one(cluster.worker_pids, drawn)


def kill_api(target: Killed) -> Callable[[random.Random], None]:
    """Kills the server."""
    return lambda drawn: target.kill_api()


def _kill_one(pids: Callable[[], list[int]], drawn: random.Random) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not (found := pids()):
        assert time.monotonic() < end_s, "there are no workers"
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.kill(drawn.choice(found), signal.SIGKILL)


def right_after_accepting(target: Killed, times: int) -> Kept:
    """Kill the server as soon as a job was acknowledged, ``times`` times; is the job there?"""
    customers, kept = Customers(target.url), Kept()
    try:
        for _ in range(times):
            job = customers.hand_in()
            target.kill_api()
            kept.jobs += 1
            if not customers.is_there(job):
                kept.lost.append(job.path)
            customers.call_off(job)
        return kept
    finally:
        customers.close()
