"""The service's settings, limits of rates, quick answers, and its parts, opened in order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import secrets
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from typing import Any, Final

import anyio
from cachetools import LRUCache

from api.problems import ProblemError
from domino_tune.requests.service import is_loopback
from domino_tune.service.executors import ChildDiedError, Limits, NoWorkerError
from domino_tune.service.executors.registry import ProcessPool, open_executor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.retention import Keep, Retention
from domino_tune.service.jobs.runner import Runner
from domino_tune.service.library import Library, bundled_summaries
from domino_tune.service.serving import SETTINGS
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.tokens import TokenDesk
from domino_tune.service.work.kinds import answer
from domino_tune.store.files import parse_json
from domino_tune.store.parsing import parse
from simulator.errors import InputError

# The service's settings, as serve writes them into its environment --------------------------------

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings; times in seconds, sizes in bytes.

    ``bind``: the address to listen on, without its port. ``executor``: where jobs run, ``local``
    or ``dask://host:port``. ``workers``: jobs that run at once; 0: this replica only answers
    requests. ``quick_workers``: processes that compute simulations and what-ifs.
    ``rate_per_s`` and ``burst``: limits for the requests of one token, by replica.
    ``most_queued``: limit of one owner's unfinished jobs. ``job_s``: computing time of a job, which
    then ends with the best so far; ``job_bytes``: memory that it may allocate.
    ``keep_s``, ``keep_jobs``, ``keep_bytes``: for how long an owner's finished jobs are kept, how
    many, and how much of one owner in all. ``quick_s``: time to compute what is not a job.
    ``notice_s``: how long /readyz answers 503 before the server stops to listen. ``drain_s``: time
    to give running jobs back after that.
    Raise InputError for an address that others reach without tokens.
    """

    database_url: str = field(repr=False)
    executor: str = "local"
    workers: int = 1
    quick_workers: int = 2
    bind: str = "127.0.0.1"
    tokens_required: bool = False
    rate_per_s: float = 100.0
    burst: int = 200
    most_queued: int = 200
    job_s: float = Limits.seconds
    job_bytes: int = Limits.memory_bytes
    keep_s: float = Keep.seconds
    keep_jobs: int = Keep.jobs
    keep_bytes: int = Keep.size_bytes
    body_bytes: int = 1 << 20
    upload_bytes: int = 16 << 20
    quick_s: float = 20.0
    notice_s: float = 1.0
    drain_s: float = 6.0

    def __post_init__(self) -> None:
        if not (self.tokens_required or is_loopback(self.bind)):
            raise InputError(
                f"Listening on {self.bind} lets others in: require tokens (`tokens add` makes "
                "one), or listen on 127.0.0.1."
            )

    @property
    def keep(self) -> Keep:
        """Return what is kept of each owner."""
        return Keep(seconds=self.keep_s, jobs=self.keep_jobs, size_bytes=self.keep_bytes)

    @property
    def limits(self) -> Limits:
        """Return the limits of a job."""
        return Limits(seconds=self.job_s, memory_bytes=self.job_bytes)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the host names that a request may use; empty where any name is allowed.

        Without tokens, a web page must not reach the service by pointing its own name at it.
        """
        return () if self.tokens_required else (*LOCAL_NAMES, self.bind)

    def to_json(self) -> str:
        """Return the JSON that ``from_environment`` reads."""
        return json.dumps(asdict(self), allow_nan=False)


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this process. Raise InputError where they are missing or bad."""
    text = environment.get(SETTINGS)
    if text is None:
        raise InputError(f"${SETTINGS} is not set; start the service with `domino-tune serve`.")
    content = parse_json(text.encode(), source=f"${SETTINGS}", error=InputError)
    return parse(Settings, content, source=f"${SETTINGS}", error=InputError)


# The rate limit of a caller -----------------------------------------------------------------------
# A token bucket.

MOST_BUCKETS: Final = 10_000
"""Callers to remember; beyond that the one seen least recently is forgotten, and starts again with
a full bucket."""


class Buckets:
    """A token bucket for each caller: ``burst`` requests at once, ``rate_per_s`` in the long run.

    Each replica counts for itself. Use it from the event loop only.
    """

    def __init__(
        self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._levels: LRUCache[str, tuple[float, float]] = LRUCache(MOST_BUCKETS)

    def take(self, key: str) -> None:
        """Count one request of ``key``. Raise ProblemError 429 where its bucket is empty."""
        now = self._clock()
        level, since = self._levels.get(key, (float(self._burst), now))
        level = min(self._burst, level + (now - since) * self._rate_per_s)
        enough = level >= 1
        self._levels[key] = (level - 1 if enough else level, now)
        if not enough:
            wait_s = math.ceil((1 - level) / self._rate_per_s)
            raise ProblemError(
                429,
                f"More than {self._rate_per_s:g} requests a second; wait {wait_s} s.",
                headers={"Retry-After": str(wait_s)},
            )


# Quick answers ------------------------------------------------------------------------------------
# Computed by child processes, stored, and shared by equal requests; owners take turns.

MOST_OF_AN_OWNER: Final = 8
"""Computations that one owner may wait for."""
STORED_BYTES: Final = 8 << 20
USUAL_S: Final = 0.2
"""What a computation takes, before any was seen."""
WEIGHT: Final = 0.1
"""Weight of the last computation in what one usually takes."""
WHOLE: Final = 0.9
"""Share of the deadline with which a computation had all the time that it may have."""
TOO_LATE: Final = "What others asked before took too long; try again."
Compute = Callable[[str, bytes], bytes]


@dataclass(kw_only=True, eq=False)
class _Asked:
    """A computation that waits or runs, for an owner, until ``end_s``."""

    key: bytes
    owner: str
    end_s: float
    call: tuple[Callable[..., Any], tuple[Any, ...]]
    future: asyncio.Future[Any]
    askers: set[object] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class Quick:
    """Answers of pure functions, which ``pool`` computes. Use it from the event loop only.

    Each owner's computations wait in a line of their own, and the lines take turns. What cannot
    begin in time to end within ``deadline_s`` is refused, as soon as that can be foreseen.
    """

    def __init__(self, pool: ProcessPool, compute: Compute, deadline_s: float) -> None:
        self._pool = pool
        self._compute = compute
        self._deadline_s = deadline_s
        self._stored: LRUCache[bytes, bytes] = LRUCache(STORED_BYTES, len)
        self._asked: dict[bytes, _Asked] = {}
        self._lines: dict[str, deque[_Asked]] = {}
        self._running: Counter[str] = Counter()
        self._usual_s = USUAL_S

    @property
    def waiting(self) -> int:
        """Return the number of computations that wait or run."""
        return len(self._asked)

    async def answer(self, owner: str, kind: str, task: bytes) -> bytes:
        """Return the result for ``task``, computed or stored. Raise as ``computed`` does."""
        key = hashlib.sha256(kind.encode() + b"\0" + task).digest()
        if key in self._stored:
            return self._stored[key]
        found: bytes = await self.computed(owner, self._compute, kind, task, key=key)
        with suppress(ValueError):  # too large to store
            self._stored[key] = found
        return found

    async def computed(
        self, owner: str, function: Callable[..., Any], *arguments: Any, key: bytes = b""
    ) -> Any:
        """Return what ``function`` returns in a child process; equal keys share a computation.

        Raise what it raises, OverLimitError where it takes longer than the deadline, and
        ProblemError 429 and 503.
        """
        key = key or uuid.uuid4().bytes
        asked = self._asked.get(key) or self._queue(owner, function, arguments, key)
        asker = object()
        asked.askers.add(asker)
        try:
            return await asyncio.shield(asked.future)
        except (ChildDiedError, NoWorkerError):
            raise _busy("The process that computed this ended; try again.", 1) from None
        finally:
            asked.askers.discard(asker)
            if not asked.askers and asked in self._lines.get(owner, ()):
                self._lines[owner].remove(asked)  # nobody waits for it any more
                self._end(asked)

    def _queue(
        self, owner: str, function: Callable[..., Any], arguments: tuple[Any, ...], key: bytes
    ) -> _Asked:
        if sum(one.owner == owner for one in self._asked.values()) >= MOST_OF_AN_OWNER:
            raise ProblemError(
                429,
                f"You wait for {MOST_OF_AN_OWNER} answers, and that is the most; wait for one.",
                headers={"Retry-After": "1"},
            )
        wait_s = self._wait_s(owner)
        if self._asked and wait_s > self._deadline_s:  # else nobody would learn that it is quick
            raise _crowded(wait_s, self._deadline_s)
        loop = asyncio.get_running_loop()
        asked = self._asked[key] = _Asked(
            key=key, owner=owner, end_s=loop.time() + self._deadline_s,
            call=(function, arguments), future=loop.create_future(),
        )  # fmt: skip
        asked.future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._lines.setdefault(owner, deque()).append(asked)
        self._begin()
        return asked

    @property
    def _most(self) -> int:
        """Return how many processes one owner may have at once: one is left to other owners."""
        return max(1, self._pool.slots - 1)

    def _wait_s(self, owner: str) -> float:
        """Return an estimate of the time until a further computation of ``owner`` has ended."""
        own = len(self._lines.get(owner, ()))
        lines = self._lines.items()
        before = (min(len(line), own + 1) for one, line in lines if self._running[one] < self._most)
        return self._until_end_s(owner, sum(before), own)

    def _until_end_s(self, owner: str, before: int, own: int) -> float:
        """Return an estimate of the time until a computation of ``owner`` has ended, which begins
        after ``before`` others that wait, and ``own`` of its owner."""
        slots, most = self._pool.slots, self._most
        ends = max(0, before + 1 + self._running.total() - slots) / slots
        own_ends = max(0, own + 1 + self._running[owner] - most) / most
        return self._usual_s * (1 + max(ends, own_ends))

    def _begin(self) -> None:
        """Give free processes the next computation of each owner in turn."""
        loop = asyncio.get_running_loop()
        while self._running.total() < self._pool.slots:
            owner = next((one for one in self._lines if self._running[one] < self._most), None)
            if owner is None:
                return
            line = self._lines[owner]
            asked = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line  # behind the other owners
            left_s = asked.end_s - loop.time()
            if left_s < min(self._usual_s, self._deadline_s / 2):
                asked.future.set_exception(_busy(TOO_LATE, 1))
                self._end(asked)
                continue
            self._running[owner] += 1
            asked.task = asyncio.create_task(self._run(asked, left_s))

    def _refuse_late(self) -> None:
        """Refuse what waits and cannot end in time, as computations take by now."""
        now_s, before, own = asyncio.get_running_loop().time(), 0, Counter[str]()
        turns = chain.from_iterable(zip_longest(*self._lines.values()))
        for asked in [one for one in turns if one is not None]:
            owner = asked.owner
            wait_s = self._until_end_s(owner, before, own[owner])
            if (self._running or before) and now_s + wait_s > asked.end_s:
                self._lines[owner].remove(asked)
                asked.future.set_exception(_crowded(wait_s, asked.end_s - now_s))
                self._end(asked)
                continue
            own[owner] += 1
            before += self._running[owner] < self._most

    async def _run(self, asked: _Asked, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began_s, (function, arguments) = loop.time(), asked.call
        try:
            call = self._pool.submit(function, *arguments, seconds=seconds)
            found = await asyncio.wrap_future(call)
        except BaseException as error:
            told = error if isinstance(error, Exception) else NoWorkerError("The service stops.")
            if seconds < WHOLE * self._deadline_s and loop.time() >= asked.end_s:
                told = _busy(TOO_LATE, 1)  # it might have ended, had it begun at once
            if not asked.future.done():
                asked.future.set_exception(told)
        else:
            if not asked.future.done():
                asked.future.set_result(found)
        finally:
            self._usual_s += WEIGHT * (loop.time() - began_s - self._usual_s)
            self._running[asked.owner] -= 1
            self._running += Counter()  # without zeros
            self._end(asked)
            self._refuse_late()
            self._begin()

    def _end(self, asked: _Asked) -> None:
        if self._asked.get(asked.key) is asked:
            del self._asked[asked.key]
        if not self._lines.get(asked.owner, True):
            del self._lines[asked.owner]


def _crowded(wait_s: float, left_s: float) -> ProblemError:
    detail = f"What others asked before takes about {wait_s:.0f} s; try again then."
    return _busy(detail, max(0, round(wait_s - left_s)) + 1)


def _busy(detail: str, retry_s: int) -> ProblemError:
    return ProblemError(503, detail, headers={"Retry-After": str(retry_s)})


# The service's parts, opened when it starts and closed in order when it stops ---------------------

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
    pool: ProcessPool
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

    def look(self) -> None:
        """Tell the runner that something else is wanted of a job."""
        if self.runner is not None:
            self.runner.look()

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
    pool = ProcessPool(settings.quick_workers, settings.job_bytes)
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
