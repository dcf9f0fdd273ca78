"""What is answered at once: computed beside the event loop, kept, and shared by equal requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final

from api.problems import ProblemError
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError

MOST_WAITING: Final = 64
"""Different computations that wait or run; more are sent away."""
MOST_OF_A_CALLER: Final = 8
"""Of them, those that one caller waits for."""
KEPT_BYTES: Final = 8 << 20
RETRY_S: Final = 1
Compute = Callable[[str, bytes], bytes]


@dataclass(kw_only=True, eq=False)
class _Running:
    """A computation that waits or runs, and how often each caller waits for it."""

    call: Future[bytes]
    future: asyncio.Future[bytes]
    askers: Counter[str] = field(default_factory=Counter)


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
        self._running: dict[bytes, _Running] = {}

    @property
    def waiting(self) -> int:
        """Computations that wait or run."""
        return len(self._running)

    async def answer(self, caller_key: str, kind: str, task: bytes) -> bytes:
        """The result for ``task``, which ``caller_key`` asks for.

        Raises what the computation raises, ProblemError 429 where the caller waits for too many
        others, and 503 where all do or it is not there by the deadline. Then, if it has begun, it
        goes on and is kept; if not, it is dropped unless another waits for it.
        """
        key = hashlib.sha256(kind.encode() + b"\0" + task).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
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
        """Nobody waits for what has not begun: it is not computed."""
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
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        self._kept_bytes += len(done.result())
        while self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)


def _busy(detail: str) -> ProblemError:
    return ProblemError(503, detail, headers={"Retry-After": str(RETRY_S)})
