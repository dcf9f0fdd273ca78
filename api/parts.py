"""The service's parts, opened when it starts and closed in order when it stops."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import anyio

from api.intake import Intake
from api.limits import Buckets
from api.lookups import Lookups
from api.quick import Quick
from api.settings import Settings
from domino_tune.service.executors.registry import open_executor
from domino_tune.service.executors.slots import SlotExecutor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.measurements import Measurements
from domino_tune.service.jobs.retention import Retention
from domino_tune.service.jobs.runner import Runner
from domino_tune.service.library import Library, bundled_summaries
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.tasks import work
from domino_tune.service.tokens import TokenDesk

QUICK_NICENESS: Final = 5
"""Somebody waits for these workers: they go before those of jobs and after the event loop."""
MOST_PINGS: Final = 2


@dataclass(kw_only=True)
class Parts:
    """What routes use. ``runner`` is None where this replica runs no jobs.

    ``draining`` is set when the service is about to stop: streams end, and /readyz answers 503.
    ``streams`` counts open streams by caller. ``pings`` limits simultaneous checks of the database,
    so that they do not take all threads when it is away.
    """

    settings: Settings
    database: Database
    jobs: JobDesk
    measurements: Measurements
    tokens: Lookups
    library: Library
    quick: Quick
    buckets: Buckets
    runner: Runner | None
    executors: list[Executor]
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    streams: Counter[str] = field(default_factory=Counter)
    pings: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MOST_PINGS))
    intake: Intake = field(default_factory=Intake)

    def wake(self) -> None:
        """Tell the runner that there is a new job."""
        if self.runner is not None:
            self.runner.wake()

    def close(self) -> None:
        """Stop worker processes and close connections. This blocks."""
        for executor in self.executors:
            executor.shutdown(wait=False, cancel_futures=True)
        self.database.close()


def open_parts(settings: Settings) -> Parts:
    """Open the database, start worker processes and read the bundled profiles, for which the first
    request would wait else. This blocks.

    Raise InputError, StorageError and UnavailableError where that fails.
    """
    database = open_database(settings.database_url)
    quick = SlotExecutor(settings.quick_workers, niceness=QUICK_NICENESS)
    executors: list[Executor] = [quick]
    library = Library(database, settings.keep)
    runner = None
    if settings.workers:
        executors.append(open_executor(settings.executor, settings.workers))
        runner = Runner(
            Leases(database, _worker_name(), shelve=library.shelve),
            executors[-1], settings.workers,
            limit_s=settings.job_s, retention=Retention(database, settings.keep),
        )  # fmt: skip
    bundled_summaries()
    return Parts(
        settings=settings,
        database=database,
        jobs=JobDesk(database, settings.keep),
        measurements=Measurements(database, settings.keep),
        tokens=Lookups(TokenDesk(database).find),
        library=library,
        quick=Quick(quick, work.quick, settings.quick_s),
        buckets=Buckets(settings.rate_per_s, settings.burst),
        runner=runner,
        executors=executors,
    )


def _worker_name() -> str:
    """Return a name that no other process has, and that this one does not get again."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
