"""The rate limit of a caller: a token bucket."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from cachetools import LRUCache

from api.problems import ProblemError

MOST_BUCKETS: Final = 10_000
"""Callers to remember; beyond that the one seen least recently is forgotten, and starts again with
a full bucket."""


class Buckets:
    """A token bucket for each caller: ``burst`` requests at once, ``rate_per_s`` in the long run.

    Each replica counts for itself. Use it from the event loop only.
    """

    def __init__(
        self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._levels: LRUCache[str, tuple[float, float]] = LRUCache(MOST_BUCKETS)

    def take(self, key: str) -> None:
        """Count one request of ``key``. Raise ProblemError 429 where its bucket is empty."""
        now = self._clock()
        level, since = self._levels.get(key, (float(self._burst), now))
        level = min(self._burst, level + (now - since) * self._rate_per_s)
        enough = level >= 1
        self._levels[key] = (level - 1 if enough else level, now)
        if not enough:
            wait_s = math.ceil((1 - level) / self._rate_per_s)
            raise ProblemError(
                429,
                f"More than {self._rate_per_s:g} requests a second; wait {wait_s} s.",
                headers={"Retry-After": str(wait_s)},
            )
