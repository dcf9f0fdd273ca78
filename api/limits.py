"""How much one caller may ask for: a bucket of requests."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from api.problems import ProblemError

MOST_BUCKETS: Final = 10_000
"""Callers that are remembered; who was not seen for longest is forgotten, with a full bucket."""


class Buckets:
    """A token bucket a caller: ``burst`` requests at once, ``rate_per_s`` in the long run.

    Each replica counts its own; used from the event loop alone.
    """

    def __init__(
        self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def knows(self, key: str) -> bool:
        """Whether ``key`` was counted lately."""
        return key in self._levels

    def forget(self, key: str) -> None:
        """Count ``key`` as if it had never come."""
        self._levels.pop(key, None)

    def take(self, key: str) -> None:
        """Count one request of ``key``. Raises ProblemError 429 where its bucket is empty."""
        now = self._clock()
        level, since = self._levels.pop(key, (float(self._burst), now))
        level = min(self._burst, level + (now - since) * self._rate_per_s)
        enough = level >= 1
        self._levels[key] = (level - 1 if enough else level, now)
        if len(self._levels) > MOST_BUCKETS:
            self._levels.popitem(last=False)
        if not enough:
            wait_s = math.ceil((1 - level) / self._rate_per_s)
            raise ProblemError(
                429,
                f"More than {self._rate_per_s:g} requests a second; wait {wait_s} s.",
                headers={"Retry-After": str(wait_s)},
            )
