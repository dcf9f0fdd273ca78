"""Runner: claims jobs and has them computed slice by slice, until it is drained.

It lives in one event loop that never computes: slices run on an executor, SQL in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from domino_tune.base.errors import RunError, with_cause
from domino_tune.requests.problems import plain_problem
from domino_tune.service import work
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from domino_tune.service.job import JobProgress, Point
from domino_tune.service.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.quantum import Reply
from simulator.errors import DominoTuneError

POLL_S: Final = 1.0
"""How often the queue is looked at, besides when somebody wakes the runner."""
TRIES: Final = 2
"""Workers that a slice may cost before its job has failed."""
MOST_ATTEMPTS: Final = 10
"""Claims of a job that ended with neither its end nor its return: it may be what kills services."""
JOBS_PER_SLOT: Final = 2
"""Jobs in hand, for each slice that runs at once: they take turns, so that a long one does not
keep all others waiting."""
BACK_OFF_S: Final = (0.1, 0.3, 1.0, 3.0)
"""Pauses between tries where database or cluster are away; the last one repeats."""
LOG: Final = logging.getLogger("domino_tune.service")
Value = TypeVar("Value")


@dataclass(kw_only=True)
class _Held:
    """A job in hand. ``renewed_s``: when its lease was surely ours (monotonic clock)."""

    claimed: Claimed
    renewed_s: float
    task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.claimed.job.id

    @property
    def key(self) -> tuple[str, int]:
        """A job that was lost while we were stopped may be ours again, under another fence."""
        return self.claimed.job.id, self.claimed.job.fence


class Runner:
    """Works on jobs of ``leases``, ``slots`` slices at once.

    ``lease_s`` is that of ``leases``; ``budget_s`` about how long a slice takes, and so how long
    cancelling may take to be seen. ``start``, then ``wake`` whenever there may be work, ``drain``
    at the end.
    """

    def __init__(
        self,
        leases: Leases,
        executor: Executor,
        slots: int,
        lease_s: float = 15.0,
        budget_s: float = 1.0,
    ) -> None:
        self._leases = leases
        self._executor = executor
        self._lease_s = lease_s
        self._budget_s = budget_s
        self._most = JOBS_PER_SLOT * slots
        self._slots = slots
        self._turns = asyncio.Semaphore(slots)
        self._alone = asyncio.Lock()
        # Of its own: what blocks the loop's threads must not keep leases from being renewed.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="leases")
        self._held: dict[tuple[str, int], _Held] = {}
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._claiming: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> int:
        """Jobs in hand."""
        return len(self._held)

    async def start(self) -> None:
        """Begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._claiming = asyncio.create_task(self._claim_on())
        self._beating = asyncio.create_task(self._beat_on())

    def wake(self) -> None:
        """Look for work now; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def drain(self, timeout_s: float = 10.0) -> None:
        """Claim no more, drop the slices that run, and give their jobs back to the queue.

        What cannot be given back in ``timeout_s`` seconds is claimed by others when its lease ends.
        """
        self._stopping.set()
        self._wake.set()
        held = list(self._held.values())
        giving = asyncio.create_task(self._give_back(held))
        await asyncio.wait([giving], timeout=timeout_s)
        for last in (giving, self._claiming, self._beating):
            if last is not None:
                await _end(last)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _give_back(self, held: list[_Held]) -> None:
        """All jobs, those finished meanwhile excepted; and the one being claimed, if any."""
        tasks = [one.task for one in held if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._release(one.claimed) for one in held))
        if self._claiming is not None:
            await asyncio.wait([self._claiming])

    async def _claim_on(self) -> None:
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
            _tell("cannot claim", error)
            return None

    def _take(self, claimed: Claimed) -> None:
        held = _Held(claimed=claimed, renewed_s=time.monotonic())
        self._held[held.key] = held
        LOG.info("job %s: claimed, attempt %d", held.id, claimed.job.attempts)
        held.task = asyncio.create_task(self._work(held))

    async def _work(self, held: _Held) -> None:
        """See a job to its end, or to where it is ours no more."""
        try:
            await self._finish(held)
        except LostLeaseError:
            LOG.info("job %s: cancelled, or another's by now", held.id)
        except Exception as error:
            _tell(f"job {held.id}", error)
        finally:
            self._held.pop(held.key, None)
            self._wake.set()

    async def _finish(self, held: _Held) -> None:
        """Compute it, and write its result or why it failed."""
        try:
            _check_attempts(held.claimed.job.attempts)
            reply = await self._advance(held)
        except (LostLeaseError, asyncio.CancelledError):
            raise
        except Exception as error:
            if not isinstance(error, DominoTuneError):
                LOG.error("job %s: a bug", held.id, exc_info=error)
            LOG.info("job %s: failed: %s", held.id, error)
            await self._write(self._leases.fail, held.claimed, plain_problem(error))
            return
        assert reply.result is not None
        await self._write(self._leases.finish, held.claimed, reply.result, reply.artifacts)
        LOG.info("job %s: done", held.id)

    async def _advance(self, held: _Held) -> Reply:
        """Slice by slice until there is a result; each one's points and progress are written."""
        claimed = held.claimed
        state = work.resume((point.index, point.body) for point in claimed.points)
        while True:
            reply = await self._slice(claimed.task, state)
            if reply.points:
                points = [Point(index=index, body=body) for index, body in reply.points]
                await self._write(self._leases.add_points, claimed, points)
            progress = JobProgress(done=reply.done, total=reply.total, text=reply.text)
            await self._write(self._leases.progress, claimed, progress, reply.best)
            if reply.result is not None:
                return reply
            state = reply.state

    async def _slice(self, task: bytes, state: bytes) -> Reply:
        """One slice. Where its worker dies, once more: alone, since the death may have been due to
        another slice on that worker, and as short as can be.

        Raises WorkerDiedError when that one dies, too.
        """
        deaths = lost = 0
        while True:
            try:
                async with self._turn(alone=deaths > 0):
                    return await self._compute(task, state, 0.0 if deaths else self._budget_s)
            except WorkerDiedError:
                deaths += 1
                if deaths == TRIES:
                    raise
            except ExecutorLostError as error:
                _tell("slice", error)
                await asyncio.sleep(BACK_OFF_S[min(lost, len(BACK_OFF_S) - 1)])
                lost += 1

    @asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        """One of the slots, in order of asking; or all of them."""
        if not alone:
            async with self._turns:
                yield
            return
        async with self._alone, AsyncExitStack() as taken:
            for _ in range(self._slots):
                await taken.enter_async_context(self._turns)
            yield

    async def _compute(self, task: bytes, state: bytes, budget_s: float) -> Reply:
        submit = self._executor.submit
        future = await asyncio.to_thread(submit, work.advance, task, state, budget_s)
        reply = await asyncio.wrap_future(future)
        assert isinstance(reply, Reply)
        return reply

    async def _write(self, function: Callable[..., Value], *args: Any) -> Value:
        """Call it until the database can take it; the heartbeat ends that with the lease.

        Raises LostLeaseError.
        """
        tries = 0
        while True:
            try:
                return await self._sql(function, *args)
            except LostLeaseError:
                raise
            except DominoTuneError as error:  # StorageError, UnavailableError
                _tell("cannot write", error)
                await asyncio.sleep(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
                tries += 1

    async def _sql(self, function: Callable[..., Value], *args: Any) -> Value:
        """Call it in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args))

    async def _release(self, claimed: Claimed) -> None:
        try:
            await self._sql(self._leases.release, claimed)
            LOG.info("job %s: given back", claimed.job.id)
        except LostLeaseError:
            pass  # it was finished just now
        except Exception as error:
            _tell(f"job {claimed.job.id} cannot be given back", error)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            # At once: where one waits for the database, the others' leases must not run out.
            await asyncio.gather(*map(self._beat, list(self._held.values())))

    async def _beat(self, held: _Held) -> None:
        """Renew a lease; drop the job where it was cancelled, or the lease is surely over."""
        asked_s = time.monotonic()
        try:
            gone = await self._sql(self._leases.renew, held.claimed)
            held.renewed_s = asked_s
        except LostLeaseError:
            gone = True
        except Exception as error:
            _tell("cannot renew", error)
            gone = time.monotonic() - held.renewed_s > self._lease_s
        if gone and held.task is not None:
            held.task.cancel()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel it; what it raised is told, and keeps nobody from cleaning up."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception as error:
        _tell("at the end", error)


def _check_attempts(attempts: int) -> None:
    """Raises RunError where a job was claimed too often."""
    if attempts > MOST_ATTEMPTS:
        raise RunError(
            f"{MOST_ATTEMPTS} attempts ended before this did, each with the service that made it; "
            "does it need more memory than there is? Ask for less, or submit it again."
        )


def _tell(what: str, error: Exception) -> None:
    if isinstance(error, DominoTuneError):
        LOG.warning("%s: %s", what, with_cause(error))
    else:
        LOG.error("%s", what, exc_info=error)
