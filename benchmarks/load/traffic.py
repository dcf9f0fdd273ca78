"""Traffic: requests at a steady rate or one by one, and what came of each."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

NO_ANSWER: Final = 0
"""Stands for the status where a connection failed."""
PATIENCE_S: Final = 60.0
"""No answer is waited for longer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one request got, and how long after it was due, in seconds."""

    status: int
    took_s: float
    body: str = ""

    @property
    def is_error(self) -> bool:
        """Whether it failed; nothing that is asked here deserves a 4xx."""
        return not 200 <= self.status < 400


@dataclass(kw_only=True)
class Visitor:
    """Asks one service, and keeps what every request of a kind took."""

    client: httpx.AsyncClient
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    async def ask(
        self, kind: str, method: str, path: str, *, due_s: float | None = None, **options: Any
    ) -> Answer:
        """Send one request and note its answer; a connection that fails is one too.

        ``due_s``: when it should have been sent (monotonic clock; default now).
        """
        due_s = time.monotonic() if due_s is None else due_s
        try:
            response = await self.client.request(method, path, **options)
        except httpx.TransportError as error:
            answer = Answer(status=NO_ANSWER, took_s=time.monotonic() - due_s, body=repr(error))
        else:
            took_s = time.monotonic() - due_s
            answer = Answer(status=response.status_code, took_s=took_s, body=response.text)
        self.answers[kind].append(answer)
        return answer

    def failed(self, kind: str, why: str) -> None:
        """Note an error that no status tells."""
        self.answers[kind].append(Answer(status=NO_ANSWER, took_s=0.0, body=why))

    def errors(self) -> list[str]:
        """What went wrong, a line each."""
        return [
            f"{kind}: {one.status or 'no answer'}: {one.body[:300]}"
            for kind, answers in self.answers.items()
            for one in answers
            if one.is_error
        ]


def visitor(url: str) -> Visitor:
    """A visitor of the service at ``url``; close its client."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    return Visitor(client=httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits))


async def paced(
    call: Callable[[int, float], Awaitable[object]], per_s: float, seconds: float
) -> None:
    """Call ``per_s`` times a second with (number, when it is due), whatever the others do.

    So a slow answer neither thins the traffic nor hides how long those behind it waited.
    """
    start = time.monotonic()
    calls = []
    for number in range(max(1, round(per_s * seconds))):
        due_s = start + number / per_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        calls.append(asyncio.ensure_future(call(number, due_s)))
    await asyncio.gather(*calls)


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that ``share`` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_ms(answers: Sequence[Answer], share: float) -> float:
    """Percentile of what answers took, in ms."""
    return 1e3 * percentile((one.took_s for one in answers), share)
