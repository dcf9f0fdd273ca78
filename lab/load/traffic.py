"""Traffic: requests at a steady rate or one by one, and their answers."""

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
"""The status of an answer where the connection failed."""
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one request. ``took_s`` counts from the time when the request was due."""

    status: int
    took_s: float
    body: str = ""

    @property
    def is_error(self) -> bool:
        """Return whether it failed. All requests of a load are valid, so a 4xx is an error too."""
        return not 200 <= self.status < 400


@dataclass(kw_only=True)
class Visitor:
    """Sends requests to one service, and records the answers by kind of request."""

    client: httpx.AsyncClient
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    async def ask(
        self, kind: str, method: str, path: str, *, due_s: float | None = None, **options: Any
    ) -> Answer:
        """Send one request and record its answer. A failed connection is an answer too.

        ``due_s``: when it should have been sent (monotonic clock, by default now).
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

    def record(self, kind: str, body: str = "", *, status: int = 200, took_s: float = 0.0) -> None:
        """Record what no single answer shows: an error, or the time of a whole job."""
        self.answers[kind].append(Answer(status=status, took_s=took_s, body=body))

    def errors(self) -> list[str]:
        """Return all errors, one line each."""
        return [
            f"{kind}: {one.status or 'no answer'}: {one.body[:300]}"
            for kind, answers in self.answers.items()
            for one in answers
            if one.is_error
        ]


def open_visitor(url: str) -> Visitor:
    """Return a visitor of the service at ``url``. The caller closes its client."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    return Visitor(client=httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits))


async def call_at_rate(
    call: Callable[[int, float], Awaitable[object]], per_s: float, seconds: float
) -> None:
    """Call ``per_s`` times a second, without waiting for earlier calls to end.

    The arguments are the number of the call and when it is due, in s (monotonic clock). So a slow
    answer does not lower the rate, and the times of later answers include their wait.
    """
    start = time.monotonic()
    calls = []
    for number in range(max(1, round(per_s * seconds))):
        due_s = start + number / per_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        calls.append(asyncio.ensure_future(call(number, due_s)))
    await asyncio.gather(*calls)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that is not below ``share`` (0 to 1) of all values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_ms(answers: Sequence[Answer], share: float) -> float:
    """Return a percentile of the times of answers, in ms."""
    return 1e3 * percentile((one.took_s for one in answers), share)
