"""The law of bursts, from collectives that were timed behind an idle link and behind each other.

The law (``simulator.link_burst``) has two unknowns: a bucket's size and the link's rate. For a
given size the rate is the least-squares one; the size is the one that leaves the smallest squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from simulator.link_burst import LinkBurst
from simulator.lookup.collectives import CollectiveRow

SIZES: Final = tuple(round(1024 * 2 ** (step / 4)) for step in range(45))
"""Buckets that are tried, bytes: 1 KiB to 2 MiB."""
LEAST_US: Final = 20.0
"""A difference of two timings below this is chance."""


class Saved(NamedTuple):
    """What a collective saves that sends ``sent_bytes``; a row that spreads weighs less."""

    sent_bytes: float
    saved_us: float
    weight: float


def burst_law(rows: Sequence[CollectiveRow]) -> LinkBurst | None:
    """Return the law of the rows between nodes; None where they save nothing."""
    timed = [row for row in rows if row.nodes > 1 and row.behind_us]
    found = [
        Saved(
            row.signature.bus_bytes,
            row.behind_us - row.median_us,
            1 / (LEAST_US**2 + row.spread_us**2),
        )
        for row in timed
    ]
    if not found:
        return None
    size, us_per_byte, squares = min(
        (_fit(found, size) for size in SIZES), key=lambda one: (one[2], one[0])
    )
    if us_per_byte * size < LEAST_US:
        return None
    weights = sum(one.weight for one in found)
    return LinkBurst(
        burst_bytes=size,
        gb_s=1e-3 / us_per_byte,
        error=math.sqrt(squares / weights) / (us_per_byte * size),
        samples=sum(row.samples for row in timed),
    )


def _fit(found: Sequence[Saved], size: int) -> tuple[int, float, float]:
    """Return the size, the µs per byte that fits best, and the squares that it leaves."""
    parts = [(one.weight, min(one.sent_bytes, size), one.saved_us) for one in found]
    slope = sum(w * x * y for w, x, y in parts) / sum(w * x * x for w, x, _ in parts)
    slope = max(0.0, slope)
    return size, slope, sum(w * (y - slope * x) ** 2 for w, x, y in parts)
