"""Progress: a callback that receives the state of a running verb, and the text for a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

Progress = Callable[[str], None]
"""Called with one line of text."""


def no_progress(message: str) -> None:
    """Ignore the message."""


RECOUNT: Final = 20
"""Steps between two counts of the plans that are left: counting takes time."""
LONG_S: Final = 60.0
"""The remaining time is shown if it is at least this long, in seconds."""


class SearchPace:
    """Describes how far a search is: steps done, most steps left, and the time that they take.

    The caller counts what is left at the steps for which ``recounts`` is true.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._steps = 0
        self._left: int | None = None
        self._next = 0

    @property
    def recounts(self) -> bool:
        """Whether the next ``step`` needs a new count of the plans that are left."""
        return self._left is None or self._steps >= self._next

    def step(self, done: int, left: int | None) -> str:
        """Return the text after one more step. ``done``: all steps so far, including earlier runs.
        ``left``: most steps left; None if unknown or not counted."""
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
