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

    What is left is told at the steps at which it ``recounts``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._steps = 0
        self._left: int | None = None
        self._next = 0

    @property
    def recounts(self) -> bool:
        """Whether the next step needs to be told what is left."""
        return self._left is None or self._steps >= self._next

    def step(self, done: int, left: int | None) -> str:
        """Return the words after one more step; ``done``: all so far, here and before. ``left``:
        how many are left at most; None where that is not known, or was not asked for."""
        self._steps += 1
        if left is not None:
            self._left, self._next = left, self._steps + RECOUNT
        elif self._left is not None:
            self._left = max(0, self._left - 1)
        words = f"{done:,} plan{'s' * (done > 1)} done"
        each_s = (self._clock() - self._began) / self._steps
        if self._left is None:
            return words + f", {each_s:,.0f} s each" * (each_s >= 1)
        more_s = self._left * each_s
        if more_s < LONG_S:
            return f"{words}, at most {self._left:,} left"
        minutes = round(more_s / 60)
        more = f"up to {minutes:,} minute{'s' * (minutes > 1)} more"
        return f"{words}, at most {self._left:,} left, {more}"
