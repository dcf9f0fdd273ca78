"""Numbers of results as the text that people read."""

from __future__ import annotations

from typing import Final

NONE: Final = "–"


def ms(value: float) -> str:
    """Return milliseconds as text, to 0.1 ms."""
    return f"{value:,.1f} ms"


def percent(value: float | None) -> str:
    """Return a relative error as text with its sign."""
    return NONE if value is None else f"{value:+.1%}"


def factor(value: float | None) -> str:
    """Return a ratio as text."""
    return NONE if value is None else f"{value:.3f}x"


def share(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return NONE if value is None else f"{value:.0%}"


def memory(gib: float) -> str:
    """Return an amount of memory in GiB as text."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{1024 * gib:,.1f} MiB"
