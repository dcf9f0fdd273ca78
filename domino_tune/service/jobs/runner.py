"""Runner: claim jobs and run them quantum by quantum, until it is drained.

It runs in one event loop that never computes: quanta run on an executor, SQL in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from domino_tune.base.errors import ConflictError, RunError, with_cause
from domino_tune.requests.problems import plain_problem
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from domino_tune.service.jobs.job import JobProgress, Point
from domino_tune.service.jobs.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.jobs.retention import Retention
from domino_tune.service.tasks import work
from domino_tune.service.tasks.quantum import QuantumResult, StopReason
from simulator.errors import DominoTuneError

POLL_S: Final = 1.0
"""Period of looking for jobs while nobody wakes the runner."""
TRIES: Final = 2
"""Worker deaths during one quantum after which a job fails."""
MOST_ATTEMPTS: Final = 10
"""Claims that neither ended nor released a job after which it fails: it may kill services."""
JOBS_PER_SLOT: Final = 2
"""Jobs held for each quantum that runs at once: they take turns, so that a long job does not keep
all others waiting.
"""
LIMIT_S: Final = 3600.0
"""Seconds of computing after which a job ends with the best so far, by default."""
CHECKPOINT_S: Final = 15.0
"""Most computing time that a search loses if it is killed; its best result is never lost."""
BACK_OFF_S: Final = (0.1, 0.3, 1.0, 3.0)
"""Pauses between tries while the database or cluster is unreachable; the last one repeats."""
LOG: Final = logging.getLogger("domino_tune.service")
Value = TypeVar("Value")


@dataclass(kw_only=True)
class _Held:
    """A claimed job. ``renewed_s``: when its lease was last known to be valid (monotonic clock).
    ``state``: where the next quantum starts, if known, for a job that is released.
    """

    claimed: Claimed
    renewed_s: float
    state: bytes | None = None
    task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.claimed.job.id

    @property
    def key(self) -> tuple[str, int]:
        """Return id and fence: a lost job may be claimed again, with another fence."""
        return self.claimed.job.id, self.claimed.job.fence


class Runner:
    """Runs jobs of ``leases``, ``slots`` quanta at once.

    ``lease_s`` is that of ``leases``. ``budget_s`` is the time of a quantum, and so the longest
    time that a cancelled job continues. A job that has computed for ``limit_s`` seconds ends with
    the best so far. ``retention`` collects from time to time. Call ``start``, then ``wake``
    whenever there may be work, and ``drain`` at the end.
    """

    def __init__(
        self,
        leases: Leases,
        executor: Executor,
        slots: int,
        lease_s: float = 15.0,
        budget_s: float = 1.0,
        limit_s: float = LIMIT_S,
        retention: Retention | None = None,
    ) -> None:
        self._leases = leases
        self._retention = retention
        self._limit_s = limit_s
        self._executor = executor
        self._lease_s = lease_s
        self._budget_s = budget_s
        self._most = JOBS_PER_SLOT * slots
        self._slots = slots
        self._free_slots = asyncio.Semaphore(slots)
        self._exclusive = asyncio.Lock()
        # Not the loop's threads: whatever blocks those must not prevent leases from being renewed.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="leases")
        self._held: dict[tuple[str, int], _Held] = {}
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._claim_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._collect_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> int:
        """Return the number of jobs held."""
        return len(self._held)

    async def start(self) -> None:
        """Start claiming jobs."""
        self._loop = asyncio.get_running_loop()
        self._claim_task = asyncio.create_task(self._claim_jobs())
        self._heartbeat_task = asyncio.create_task(self._renew_leases())
        self._collect_task = asyncio.create_task(self._collect())

    def wake(self) -> None:
        """Look for work now; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def drain(self, timeout_s: float = 10.0) -> None:
        """Stop claiming, drop the running quanta, and release their jobs.

        A job that is not released within ``timeout_s`` seconds is claimed by others when its lease
        expires.
        """
        self._stopping.set()
        self._wake.set()
        held = list(self._held.values())
        release_task = asyncio.create_task(self._release_all(held))
        await asyncio.wait([release_task], timeout=timeout_s)
        for task in (
            release_task, self._claim_task, self._heartbeat_task, self._collect_task,
        ):  # fmt: skip
            if task is not None:
                await _end(task)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _release_all(self, held: list[_Held]) -> None:
        """Release those jobs of ``held`` that have not ended, and a job whose claim is in
        progress.
        """
        tasks = [one.task for one in held if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._release(one.claimed, one.state) for one in held))
        if self._claim_task is not None:
            await asyncio.wait([self._claim_task])

    async def _claim_jobs(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            claimed = await self._claim() if len(self._held) < self._most else None
            if claimed is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL_S)
            elif self._stopping.is_set():
                await self._release(claimed)
            else:
                self._take(claimed)

    async def _claim(self) -> Claimed | None:
        try:
            return await self._sql(self._leases.claim)
        except Exception as error:
            _log("cannot claim", error)
            return None

    def _take(self, claimed: Claimed) -> None:
        held = _Held(claimed=claimed, renewed_s=time.monotonic())
        self._held[held.key] = held
        LOG.info("job %s: claimed, attempt %d", held.id, claimed.job.attempts)
        held.task = asyncio.create_task(self._work(held))

    async def _work(self, held: _Held) -> None:
        """Run a job until it ends or is lost."""
        try:
            await self._finish(held)
        except LostLeaseError:
            LOG.info("job %s: cancelled, or another's by now", held.id)
        except Exception as error:
            _log(f"job {held.id}", error)
        finally:
            self._held.pop(held.key, None)
            self._wake.set()

    async def _finish(self, held: _Held) -> None:
        """Compute the job, and write its result or its error."""
        try:
            _check_attempts(held.claimed.job.attempts)
            last = await self._advance(held)
            assert last.result is not None
            await self._write(
                self._leases.finish, held.claimed, last.result, last.artifacts, last.stopped_by
            )
            LOG.info("job %s: done%s", held.id, ", stopped early" if last.stopped_by else "")
        except (LostLeaseError, asyncio.CancelledError):
            raise
        except Exception as error:
            if not isinstance(error, DominoTuneError):
                LOG.error("job %s: a bug", held.id, exc_info=error)
            LOG.info("job %s: failed: %s", held.id, error)
            await self._write(self._leases.fail, held.claimed, plain_problem(error))

    async def _advance(self, held: _Held) -> QuantumResult:
        """Run quanta until one returns a result; write the points and the progress of each, and the
        state whenever something better is found.
        """
        claimed = held.claimed
        best: Mapping[str, Any] | None = claimed.job.best
        computed_s = kept_s = claimed.job.progress.computed_s
        stopped_by = claimed.job.stopped_by
        state = claimed.checkpoint or work.resume((one.index, one.body) for one in claimed.points)
        while True:
            if stopped_by is None and computed_s >= self._limit_s:
                stopped_by = "time"
            quantum = await self._quantum(claimed.task, state, stopped_by)
            if quantum.points:
                points = [Point(index=index, body=body) for index, body in quantum.points]
                await self._write(self._leases.add_points, claimed, points)
            computed_s += quantum.seconds
            progress = JobProgress(
                done=quantum.done, total=quantum.total, text=quantum.text, left=quantum.left,
                computed_s=computed_s,
            )  # fmt: skip
            searched = quantum.best is not None and quantum.result is None
            keep = searched and (quantum.best != best or computed_s - kept_s >= CHECKPOINT_S)
            asked = await self._write(
                self._leases.progress, claimed, progress, quantum.best,
                quantum.state if keep else None,
            )  # fmt: skip
            if quantum.result is not None:
                return quantum
            stopped_by, state, best = asked or stopped_by, quantum.state, quantum.best
            held.state = state if searched else None
            kept_s = computed_s if keep else kept_s

    async def _quantum(
        self, task: bytes, state: bytes, stopped_by: StopReason | None
    ) -> QuantumResult:
        """Run one quantum. If its worker dies, run it again, as short as possible, and alone:
        another quantum on that worker may have caused the death.

        Raise WorkerDiedError if the second worker dies too.
        """
        deaths = lost = 0
        while True:
            try:
                async with self._slot(alone=deaths > 0):
                    budget_s = 0.0 if deaths else self._budget_s
                    return await self._compute(task, state, budget_s, stopped_by)
            except WorkerDiedError:
                deaths += 1
                if deaths == TRIES:
                    raise
            except ExecutorLostError as error:
                _log("quantum", error)
                await asyncio.sleep(BACK_OFF_S[min(lost, len(BACK_OFF_S) - 1)])
                lost += 1

    @asynccontextmanager
    async def _slot(self, alone: bool) -> AsyncIterator[None]:
        """Take one of the slots, first come first served, or all of them if ``alone``."""
        if not alone:
            async with self._free_slots:
                yield
            return
        async with self._exclusive, AsyncExitStack() as taken:
            for _ in range(self._slots):
                await taken.enter_async_context(self._free_slots)
            yield

    async def _compute(
        self, task: bytes, state: bytes, budget_s: float, stopped_by: StopReason | None
    ) -> QuantumResult:
        submit = self._executor.submit
        future = await asyncio.to_thread(submit, work.advance, task, state, budget_s, stopped_by)
        result = await asyncio.wrap_future(future)
        assert isinstance(result, QuantumResult)
        return result

    async def _write(self, function: Callable[..., Value], *args: Any) -> Value:
        """Call ``function`` until the database accepts it; the heartbeat cancels this when the
        lease expires. Raise LostLeaseError, and ConflictError, which waiting does not resolve.
        """
        tries = 0
        while True:
            try:
                return await self._sql(function, *args)
            except (LostLeaseError, ConflictError):
                raise
            except DominoTuneError as error:  # StorageError, UnavailableError
                _log("cannot write", error)
                await asyncio.sleep(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
                tries += 1

    async def _sql(self, function: Callable[..., Value], *args: Any) -> Value:
        """Call ``function`` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args))

    async def _release(self, claimed: Claimed, state: bytes | None = None) -> None:
        try:
            await self._sql(self._leases.release, claimed, state)
            LOG.info("job %s: given back", claimed.job.id)
        except LostLeaseError:
            pass  # the job has just ended
        except Exception as error:
            _log(f"job {claimed.job.id} cannot be given back", error)

    async def _collect(self) -> None:
        """Delete what exceeds retention, whenever that is due and no other replica does it."""
        while self._retention is not None:
            try:
                gone = await self._sql(self._retention.collect_if_due)
                if gone is not None and (gone.jobs or gone.bodies):
                    LOG.info("deleted %d old jobs and %d bodies", gone.jobs, gone.bodies)
            except Exception as error:
                _log("cannot collect", error)
            await asyncio.sleep(self._retention.period_s)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            # Renew all at once: while one waits for the database, the other leases must not expire.
            await asyncio.gather(*map(self._renew, list(self._held.values())))

    async def _renew(self, held: _Held) -> None:
        """Renew a lease; drop a job that was cancelled, or whose lease has expired."""
        asked_s = time.monotonic()
        try:
            gone = await self._sql(self._leases.renew, held.claimed)
            held.renewed_s = asked_s
        except LostLeaseError:
            gone = True
        except Exception as error:
            _log("cannot renew", error)
            gone = time.monotonic() - held.renewed_s > self._lease_s
        if gone and held.task is not None:
            held.task.cancel()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task; log what it raises, so that the cleanup continues."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception as error:
        _log("at the end", error)


def _check_attempts(attempts: int) -> None:
    """Raise RunError if a job was claimed too often."""
    if attempts > MOST_ATTEMPTS:
        raise RunError(
            f"{MOST_ATTEMPTS} attempts ended before this did, each with the service that made it; "
            "does it need more memory than there is? Ask for less, or submit it again."
        )


def _log(what: str, error: Exception) -> None:
    if isinstance(error, DominoTuneError):
        LOG.warning("%s: %s", what, with_cause(error))
    else:
        LOG.error("%s", what, exc_info=error)
