"""Medians of repeated timings, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

CONFIDENCE: Final = 0.95


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """(low, high) that holds the true median with ``confidence``, whatever the distribution.

    By order statistics: each timing is above the median or not, like a fair coin. Fewer than six
    timings cannot be that sure at 95 %; then it is their whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    below, outside = 0, 0.0
    while below < count // 2:
        outside += math.comb(count, below) / 2**count
        if 2 * outside > 1 - confidence:
            break
        below += 1
    rank = max(below, 1)
    return ordered[rank - 1], ordered[count - rank]


def half_spread(values: Sequence[float]) -> float:
    """Half of the range that holds the middle half; of the whole range below four values."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2
