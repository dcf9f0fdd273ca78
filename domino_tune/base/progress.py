"""Progress: a callback that gets the state of a running verb."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with one line of text."""


def no_progress(message: str) -> None:
    """Ignore the message."""
