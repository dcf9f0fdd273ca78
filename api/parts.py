"""The service's parts, opened when it starts and closed in order when it stops."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import anyio

from api.limits import Buckets
from api.quick import Quick
from api.settings import Settings
from domino_tune.service.executors.registry import Pool, open_executor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.retention import Retention
from domino_tune.service.jobs.runner import Runner
from domino_tune.service.library import Library, bundled_summaries
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.tokens import TokenDesk
from domino_tune.service.work.kinds import answer

MOST_PINGS: Final = 2
MOST_LOOKUPS: Final = 8
"""Tokens that are looked up at once, so that guesses cannot use up the threads."""


@dataclass(kw_only=True)
class Parts:
    """What routes use. ``runner`` is None where this replica runs no jobs.

    ``draining`` is set when the service is about to stop: streams end, and /readyz answers 503.
    ``streams`` counts open streams by owner. ``pings``, ``lookups`` and ``parsing`` limit what
    takes threads: checks of the database, look-ups of tokens, large bodies that are parsed.
    """

    settings: Settings
    database: Database
    jobs: JobDesk
    tokens: TokenDesk
    library: Library
    pool: Pool
    quick: Quick
    buckets: Buckets
    runner: Runner | None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    streams: Counter[str] = field(default_factory=Counter)
    pings: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MOST_PINGS))
    lookups: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(MOST_LOOKUPS)
    )
    parsing: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))

    def wake(self) -> None:
        """Tell the runner that there is a new job."""
        if self.runner is not None:
            self.runner.wake()

    def close(self) -> None:
        """Give back jobs, stop child processes and close connections. This blocks."""
        if self.runner is not None:
            self.runner.close(self.settings.drain_s)
        self.pool.close()
        self.database.close()


def open_parts(settings: Settings) -> Parts:
    """Open the database, start to run jobs, and do what the first request would wait for else. This
    blocks.

    Raise InputError, StorageError and UnavailableError where that fails.
    """
    database = open_database(settings.database_url)
    pool = Pool(settings.quick_workers, settings.job_bytes)
    library = Library(database, settings.keep)
    bundled_summaries()
    pool.warm()
    runner = None
    if settings.workers:
        runner = Runner(
            Leases(database, _worker_name(), shelve=library.shelve),
            open_executor(settings.executor, settings.workers), settings.workers,
            limits=settings.limits, retention=Retention(database, settings.keep),
        )  # fmt: skip
        runner.start()
    return Parts(
        settings=settings,
        database=database,
        jobs=JobDesk(database, settings.keep),
        tokens=TokenDesk(database),
        library=library,
        pool=pool,
        quick=Quick(pool, answer, settings.quick_s),
        buckets=Buckets(settings.rate_per_s, settings.burst),
        runner=runner,
    )


def _worker_name() -> str:
    """Return a name that no other process has, and that this one does not get again."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
