"""Progress: a callback that gets the state of a running verb, and what is told of a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

Progress = Callable[[str], None]
"""Called with one line of text."""


def no_progress(message: str) -> None:
    """Ignore the message."""


RECOUNT: Final = 20
"""What is left is counted again after so many steps: to count takes time."""
LONG_S: Final = 60.0
"""From so many seconds on, how long a search will take is told."""


class Pace:
    """How far a search is, in words: steps done, those left at most, and the time that they take.

    ``count``: how many are left at most, None where that is not known yet.
    """

    def __init__(
        self, count: Callable[[], int | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._began = clock()
        self._steps = 0
        self._left: int | None = None
        self._next = 1

    def step(self, done: int) -> str:
        """Return the words after one more step; ``done``: all so far, here and before."""
        self._steps += 1
        if self._left is not None:
            self._left = max(0, self._left - 1)
        if self._left is None or self._steps >= self._next:
            self._left = self._count()
            self._next = self._steps + RECOUNT
        words = f"{done:,} plan{'s' * (done > 1)} done"
        if self._left is None:
            each_s = (self._clock() - self._began) / self._steps
            return words + f", {each_s:,.0f} s each" * (each_s >= 1)
        return f"{words}, at most {self._left:,} left{self._minutes(self._left)}"

    def _minutes(self, left: int) -> str:
        seconds = left * (self._clock() - self._began) / self._steps
        return f", up to {seconds / 60:,.0f} minutes more" if seconds >= LONG_S else ""
