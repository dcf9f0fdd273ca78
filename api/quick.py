"""Quick answers: computed by child processes, stored, and shared by equal requests; owners take
turns."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import LRUCache

from api.problems import ProblemError
from domino_tune.service.executors import ChildDiedError, NoWorkerError
from domino_tune.service.executors.registry import Pool

MOST_OF_AN_OWNER: Final = 8
"""Computations that one owner may wait for."""
STORED_BYTES: Final = 8 << 20
USUAL_S: Final = 0.2
"""What a computation takes, before any was seen."""
WEIGHT: Final = 0.1
"""Weight of the last computation in what one usually takes."""
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
    begin in time to end within ``deadline_s`` is refused: at once where that can be foreseen.
    """

    def __init__(self, pool: Pool, compute: Compute, deadline_s: float) -> None:
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
        if wait_s > self._deadline_s:
            raise _busy(
                f"What others asked before takes about {wait_s:.0f} s; try again then.",
                round(wait_s - self._deadline_s) + 1,
            )
        loop = asyncio.get_running_loop()
        asked = self._asked[key] = _Asked(
            key=key, owner=owner, end_s=loop.time() + self._deadline_s,
            call=(function, arguments), future=loop.create_future(),
        )  # fmt: skip
        asked.future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._lines.setdefault(owner, deque()).append(asked)
        self._begin()
        return asked

    def _wait_s(self, owner: str) -> float:
        """Return an estimate of the time until a further computation of ``owner`` has ended."""
        mine = len(self._lines.get(owner, ())) + 1
        before = sum(min(len(line), mine) for line in self._lines.values())
        return self._usual_s * (1 + (before + self._running.total()) / self._pool.slots)

    def _begin(self) -> None:
        """Give free processes the next computation of each owner in turn; leave one process to
        other owners."""
        loop = asyncio.get_running_loop()
        most = max(1, self._pool.slots - 1)
        while self._running.total() < self._pool.slots:
            owner = next((one for one in self._lines if self._running[one] < most), None)
            if owner is None:
                return
            line = self._lines[owner]
            asked = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line  # behind the other owners
            left_s = asked.end_s - loop.time()
            if left_s < min(self._usual_s, self._deadline_s / 2):
                asked.future.set_exception(
                    _busy("What others asked before took too long; try again.", 1)
                )
                self._end(asked)
                continue
            self._running[owner] += 1
            asked.task = asyncio.create_task(self._run(asked, left_s))

    async def _run(self, asked: _Asked, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began_s, (function, arguments) = loop.time(), asked.call
        try:
            call = self._pool.submit(function, *arguments, seconds=seconds)
            found = await asyncio.wrap_future(call)
        except BaseException as error:
            if not asked.future.done():
                asked.future.set_exception(
                    error if isinstance(error, Exception) else NoWorkerError("The service stops.")
                )
        else:
            if not asked.future.done():
                asked.future.set_result(found)
        finally:
            self._usual_s += WEIGHT * (loop.time() - began_s - self._usual_s)
            self._running[asked.owner] -= 1
            self._running += Counter()  # without zeros
            self._end(asked)
            self._begin()

    def _end(self, asked: _Asked) -> None:
        if self._asked.get(asked.key) is asked:
            del self._asked[asked.key]
        if not self._lines.get(asked.owner, True):
            del self._lines[asked.owner]


def _busy(detail: str, retry_s: int) -> ProblemError:
    return ProblemError(503, detail, headers={"Retry-After": str(retry_s)})
