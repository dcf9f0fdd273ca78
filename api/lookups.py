"""Look-ups of tokens in threads; one serves all requests that bring the same token at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import anyio

from domino_tune.service.tokens import Token

MOST_UNSEEN: Final = 2
"""Tokens not seen lately that are looked up at once, so that guesses cannot use up the threads."""


class Lookups:
    """Shares the answers of ``find(secret)``, which blocks. Use it from the event loop only.

    A look-up starts after all requests that it answers have arrived, so a token that was revoked
    before a request is not found for it. Looking up sixty simultaneous requests of one caller one
    by one held up the event loop: each of their socket calls waited for a thread.
    """

    def __init__(self, find: Callable[[str], Token | None]) -> None:
        self._find = find
        self._coming: dict[str, asyncio.Task[Token | None]] = {}
        self._begun: dict[str, asyncio.Task[Token | None]] = {}
        self._unseen = anyio.CapacityLimiter(MOST_UNSEEN)

    async def find(self, secret: str, *, seen: bool) -> Token | None:
        """Return the token with this secret, or None if it does not exist. ``seen``: it was valid
        lately. Raise what ``find`` raises.
        """
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
