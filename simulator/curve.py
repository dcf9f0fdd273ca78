"""A measured curve: (x, y) rows, sorted by x."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from simulator.errors import ProfileError
from simulator.lookup import require_number, require_positive


def between(rows: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at ``x``: linear between rows, from (0, 0) on; constant after the last row."""
    if not rows:
        return 0.0
    index = bisect_left(rows, (x, 0.0))
    if index == len(rows):
        return rows[-1][1]
    low_x, low_y = rows[index - 1] if index else (0.0, 0.0)
    high_x, high_y = rows[index]
    return low_y + (x - low_x) / (high_x - low_x) * (high_y - low_y)


def check_curve(owner: str, names: tuple[str, str], rows: Sequence[tuple[float, float]]) -> None:
    """Raise ProfileError unless each x is positive and above the one before, and no y negative."""
    for x, y in rows:
        require_positive(owner, names[0], x)
        require_number(owner, names[1], y)
    lengths = [x for x, _ in rows]
    if lengths != sorted(set(lengths)):
        raise ProfileError(f"{owner}: rows must be sorted by {names[0]}, each length once.")
