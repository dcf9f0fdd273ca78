"""Medians of repeated timings: confidence intervals and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

CONFIDENCE: Final = 0.95


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return (low, high) that holds the true median with ``confidence``, for any distribution.

    Uses order statistics: each timing is above the median with probability 1/2. Fewer than six
    timings give no interval of 95 %; then it is their whole range.
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
    """Return half of the interquartile range; below four values, half of the whole range."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2
