"""What is answered at once: computed beside the event loop, kept, and shared by equal requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from api.problems import ProblemError
from domino_tune.jobs.executors import WorkerDiedError

MOST_WAITING: Final = 64
"""Different computations that wait or run; more are sent away."""
KEPT_BYTES: Final = 32 << 20
RETRY_S: Final = 1
Compute = Callable[[str, bytes], bytes]


class Quick:
    """Answers of a pure function ``compute(kind, task)``, which runs on ``executor``.

    Used from the event loop alone. An answer is kept until newer ones need its room.
    """

    def __init__(self, executor: Executor, compute: Compute, deadline_s: float) -> None:
        self._executor = executor
        self._compute = compute
        self._deadline_s = deadline_s
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[bytes, asyncio.Future[bytes]] = {}

    @property
    def waiting(self) -> int:
        """Computations that wait or run."""
        return len(self._running)

    async def answer(self, kind: str, task: bytes) -> bytes:
        """The result for ``task``.

        Raises what the computation raises, and ProblemError 503 where too much is asked at once or
        it is not there by the deadline; it is then still being computed, and kept.
        """
        key = hashlib.sha256(kind.encode() + b"\0" + task).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        running = self._running.get(key) or self._start(key, kind, task)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._deadline_s)
        except TimeoutError:
            raise _busy(f"This takes longer than {self._deadline_s:g} s; try again.") from None
        except WorkerDiedError:
            raise _busy("The process that computed this ended; try again.") from None

    def _start(self, key: bytes, kind: str, task: bytes) -> asyncio.Future[bytes]:
        if len(self._running) >= MOST_WAITING:
            raise _busy(f"{MOST_WAITING} other requests are being answered; try again.")
        future = asyncio.wrap_future(self._executor.submit(self._compute, kind, task))
        self._running[key] = future
        future.add_done_callback(lambda done: self._finish(key, done))
        return future

    def _finish(self, key: bytes, done: asyncio.Future[bytes]) -> None:
        del self._running[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        self._kept_bytes += len(done.result())
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)


def _busy(detail: str) -> ProblemError:
    return ProblemError(503, detail, headers={"Retry-After": str(RETRY_S)})
