"""Quick answers: computed on an executor, stored, and shared by equal requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

from api.problems import ProblemError
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError

MOST_WAITING: Final = 64
"""Most different computations that wait or run; more are refused."""
MOST_OF_A_CALLER: Final = 8
"""Computations that one caller may wait for."""
STORED_BYTES: Final = 8 << 20
RETRY_S: Final = 1
Compute = Callable[[str, bytes], bytes]


@dataclass(kw_only=True, eq=False)
class _Running:
    """A computation that waits or runs, with the number of requests for it by caller."""

    call: Future[bytes]
    future: asyncio.Future[bytes]
    askers: Counter[str] = field(default_factory=Counter)


class Quick:
    """Answers of a pure function ``compute(kind, task)``, which runs on ``executor``.

    Use it from the event loop only. An answer is stored until newer ones need its space.
    """

    def __init__(self, executor: Executor, compute: Compute, deadline_s: float) -> None:
        self._executor = executor
        self._compute = compute
        self._deadline_s = deadline_s
        self._stored: LRUCache[bytes, bytes] = LRUCache(STORED_BYTES, len)
        self._running: dict[bytes, _Running] = {}

    @property
    def waiting(self) -> int:
        """Return the number of computations that wait or run."""
        return len(self._running)

    async def answer(self, caller_key: str, kind: str, task: bytes) -> bytes:
        """Return the result for ``task``, which ``caller_key`` asks for.

        Raise what the computation raises, ProblemError 429 if the caller waits for too many
        answers, and 503 if all callers together do or the deadline has passed. After that deadline
        a running computation continues and its answer is stored; a queued one is dropped unless
        somebody else waits for it.
        """
        key = hashlib.sha256(kind.encode() + b"\0" + task).digest()
        if key in self._stored:
            return self._stored[key]
        if sum(caller_key in one.askers for one in self._running.values()) >= MOST_OF_A_CALLER:
            raise ProblemError(
                429,
                f"You wait for {MOST_OF_A_CALLER} answers, and that is the most; wait for one.",
                headers={"Retry-After": str(RETRY_S)},
            )
        running = self._running.get(key) or self._start(key, kind, task)
        running.askers[caller_key] += 1
        try:
            return await asyncio.wait_for(asyncio.shield(running.future), self._deadline_s)
        except TimeoutError:
            raise _busy(f"This takes longer than {self._deadline_s:g} s; try again.") from None
        except (WorkerDiedError, ExecutorLostError):
            raise _busy("The process that computed this ended; try again.") from None
        finally:
            self._leave(key, running, caller_key)

    def _start(self, key: bytes, kind: str, task: bytes) -> _Running:
        if len(self._running) >= MOST_WAITING:
            raise _busy(f"{MOST_WAITING} other requests are being answered; try again.")
        call = self._executor.submit(self._compute, kind, task)
        running = _Running(call=call, future=asyncio.wrap_future(call))
        self._running[key] = running
        running.future.add_done_callback(lambda done: self._finish(key, running))
        return running

    def _leave(self, key: bytes, running: _Running, caller_key: str) -> None:
        """Drop the computation if it has not started and nobody waits for it."""
        running.askers[caller_key] -= 1
        if not running.askers[caller_key]:
            del running.askers[caller_key]
        if not running.askers and running.call.cancel():
            self._forget(key, running)

    def _forget(self, key: bytes, running: _Running) -> None:
        if self._running.get(key) is running:
            del self._running[key]

    def _finish(self, key: bytes, running: _Running) -> None:
        self._forget(key, running)
        done = running.future
        if not done.cancelled() and done.exception() is None:
            with suppress(ValueError):  # too large to store
                self._stored[key] = done.result()


def _busy(detail: str) -> ProblemError:
    return ProblemError(503, detail, headers={"Retry-After": str(RETRY_S)})
