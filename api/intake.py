"""Intake: limit the large bodies that a replica holds at once, and parse them in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from api.problems import ProblemError, bad_body
from api.strict_json import count_values

SMALL_BYTES: Final = 64 << 10
"""Bodies up to this size are parsed in the event loop, and not counted."""
MOST_BYTES: Final = 96 << 20
"""Bytes of all callers' large bodies that are arriving or being processed."""
SHARE_BYTES: Final = 40 << 20
"""Bytes of one caller's large bodies: two uploads, or forty other bodies."""
AT_ONCE: Final = 4
RETRY_S: Final = 1


class Intake:
    """The limits on large bodies. Use it from the event loop only.

    ``bodies`` and ``uploads`` let one thread at a time parse: a parsed body takes far more memory
    than its bytes, and threads that parse at the same time only wait for each other.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, share_bytes: int = SHARE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._share_bytes = share_bytes
        self._held: Counter[str] = Counter()
        self._pace = asyncio.Semaphore(AT_ONCE)
        self.bodies = anyio.CapacityLimiter(1)
        self.uploads = anyio.CapacityLimiter(1)

    async def pace(self) -> None:
        """Wait for this body's turn. AT_ONCE bodies continue in each round of the event loop, which
        keeps a round short however many arrive. A body that stalls delays no other.
        """
        async with self._pace:
            await asyncio.sleep(0)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of large bodies that are held now."""
        return self._held.total()

    @contextmanager
    def body(
        self, caller_key: str, most_values: int | None = None
    ) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that counts each part of a caller's body as held until the context ends.

        It raises ProblemError 422 above ``most_values`` values of JSON, 429 above the caller's
        share of bytes, and 503 above the limit for all callers.
        """
        size = held = values = 0

        def take(part: bytes) -> None:
            nonlocal size, held, values
            size += len(part)
            values += 0 if most_values is None else count_values(part)
            if most_values is not None and values > most_values:
                raise bad_body(f"The body may hold at most {most_values:,} values; send fewer.")
            if size <= SMALL_BYTES:
                return
            more = size - held
            if self._held[caller_key] + more > self._share_bytes:
                raise _refused(429, f"Bodies of yours take {self._share_bytes >> 20} MiB")
            if self.held_bytes + more > self._most_bytes:
                raise _refused(503, f"Bodies take {self._most_bytes >> 20} MiB")
            self._held[caller_key] += more
            held = size

        try:
            yield take
        finally:
            self._held[caller_key] -= held
            if not self._held[caller_key]:
                del self._held[caller_key]


def _refused(status: int, what: str) -> ProblemError:
    return ProblemError(
        status,
        f"{what} already, and that is the most at once; send this one again a little later.",
        headers={"Retry-After": str(RETRY_S)},
    )
