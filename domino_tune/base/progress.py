"""Progress: who wants to know how far a verb is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with a line of text, now and then."""


def no_progress(message: str) -> None:
    """Tell nobody."""
