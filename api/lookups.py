"""Look-ups of tokens: in threads, one for all requests that bring the same token at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import anyio

from domino_tune.service.tokens import Token

MOST_UNSEEN: Final = 2
"""Tokens not seen lately that are looked up at once: guesses do not take the threads of others."""


class Lookups:
    """Answers of ``find(secret)``, which blocks. Use it from the event loop only.

    A look-up begins after all requests that it answers have come, so a token that was revoked
    before a request is not found for it. Sixty requests of one caller at the same moment looked up
    one by one held up the event loop: each of its socket calls waited for a thread.
    """

    def __init__(self, find: Callable[[str], Token | None]) -> None:
        self._find = find
        self._coming: dict[str, asyncio.Task[Token | None]] = {}
        self._begun: dict[str, asyncio.Task[Token | None]] = {}
        self._unseen = anyio.CapacityLimiter(MOST_UNSEEN)

    async def find(self, secret: str, *, seen: bool) -> Token | None:
        """Return the token with this secret; None where there is none. ``seen``: it was valid
        lately. Raise what ``find`` raises."""
        coming = self._coming.get(secret)
        if coming is None:
            coming = self._coming[secret] = asyncio.create_task(self._look_up(secret, seen))
        return await asyncio.shield(coming)

    async def _look_up(self, secret: str, seen: bool) -> Token | None:
        if begun := self._begun.get(secret):
            await asyncio.wait([begun])
        async with nullcontext() if seen else self._unseen:
            self._begun[secret] = self._coming.pop(secret)
            try:
                return await anyio.to_thread.run_sync(self._find, secret)
            finally:
                del self._begun[secret]
