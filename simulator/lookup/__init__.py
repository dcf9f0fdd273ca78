"""Look-ups: from an op's signature to its duration, one table per kind of op.

A table holds rows (timed signatures) and a fit (a law). The row of the same signature comes first,
then interpolation between rows, then the law. Each answer has its source and expected error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

from simulator.errors import ProfileError
from simulator.estimate import Source
from simulator.lookup import expected

FitKind = Literal["fitted", "assumed"]
FIT_KINDS: Final = ("fitted", "assumed")
ABSENT_IF_EMPTY: Final[dict[str, Any]] = {"absent_if_empty": True}
"""Metadata of a field that a profile's file omits if it is empty."""
MAX_REACH: Final = 2.0  # a look-up up to this factor outside the measured range is still trusted


def require_number(owner: str, name: str, value: object, *, low: float = 0.0) -> None:
    """Raise ProfileError unless ``value`` is a finite number ≥ ``low``."""
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or float(value) < low:  # type: ignore[arg-type]
        raise ProfileError(f"{owner}: {name} must be a finite number ≥ {low:g}, got {value!r}.")


def require_positive(owner: str, name: str, value: object) -> None:
    """Raise ProfileError unless ``value`` is a finite number > 0."""
    require_number(owner, name, value)
    if value == 0:
        raise ProfileError(f"{owner}: {name} must be > 0, got 0.")


def require_count(owner: str, name: str, value: object, *, low: int = 1) -> None:
    """Raise ProfileError unless ``value`` is an int ≥ ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ProfileError(f"{owner}: {name} must be a whole number ≥ {low}, got {value!r}.")


def require_choice(owner: str, name: str, value: str, known: Sequence[str]) -> None:
    """Raise ProfileError unless ``value`` is one of ``known``."""
    if value not in known:
        raise ProfileError(f"{owner}: {name} must be one of {', '.join(known)}, got {value!r}.")


def require_sorted(owner: str, keys: Sequence[Any]) -> None:
    """Raise ProfileError naming the first row whose key is not above the row before it."""
    for index in range(1, len(keys)):
        if not keys[index - 1] < keys[index]:
            why = "repeats" if keys[index - 1] == keys[index] else "must come before"
            raise ProfileError(
                f"{owner}.rows[{index}] {keys[index]} {why} rows[{index - 1}] {keys[index - 1]}; "
                f"rows are sorted by signature, each once."
            )


class Timing(Protocol):
    """Protocol of every row: median and spread of ``samples`` runs, in µs."""

    @property
    def median_us(self) -> float:
        """Median time, in µs."""

    @property
    def spread_us(self) -> float:
        """Spread of the times, in µs; 0 if unknown."""

    @property
    def samples(self) -> int:
        """Number of runs."""


def row_error(row: Timing) -> float:
    """Return the expected relative error of a timed row; 2 % if its spread is unknown."""
    if row.samples <= 1 or row.spread_us <= 0:
        return expected.SINGLE_RUN.error
    return max(expected.LEAST.error, row.spread_us / row.median_us)


def reach(value: float, low: float, high: float) -> float:
    """Return the factor by which ``value`` lies outside [low, high]; 1 inside."""
    if value < low:
        return low / max(value, 1e-9)
    return value / high if value > high else 1.0


def widened(kind: FitKind, error: float, how_far: float) -> tuple[Source, float]:
    """Return source and error of a law used ``how_far`` outside its range (see ``reach``)."""
    if how_far <= MAX_REACH:
        return kind, error
    wide = min(1.0, max(expected.FAR.error, error) * (1.0 + 0.5 * math.log2(how_far)))
    return ("assumed" if kind == "assumed" else "extrapolated"), wide
