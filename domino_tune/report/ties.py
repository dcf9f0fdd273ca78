"""Ties: times that differ by less than predictions tell apart."""

from __future__ import annotations

from typing import Final

from domino_tune.report.markup import Html, tag

TIE: Final = 0.01
"""The search's band; written here too, since the page is served where no search is loaded."""
TIE_WORDS: Final = f"tie: within {TIE:.0%} of the fastest, which predictions do not tell apart."


def ties(iteration_ms: float, fastest_ms: float) -> bool:
    """Return whether a time ties with the fastest, which ties with itself."""
    return iteration_ms <= (1 + TIE) * fastest_ms


def tie_mark(tied: bool) -> Html:
    """Return the mark of a tie, or nothing."""
    return tag("small", " tie", class_="tie") if tied else Html("")
