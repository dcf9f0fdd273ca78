"""The law of idle lanes, from collectives timed behind a lane that idled and behind each other.

The law (``simulator.cpu_hosts``) has three unknowns: a bucket's size, the time that a whole bucket
takes, and the time of waking. For a given size both times are the least-squares ones that are not
negative; the size is the one that leaves the smallest squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cpu_hosts import IdleLane
from simulator.lookup.collectives import CollectiveRow

SIZES: Final = tuple(round(1024 * 2 ** (step / 4)) for step in range(45))
"""Buckets that are tried, bytes: 1 KiB to 2 MiB."""
LEAST_US: Final = 20.0
"""A difference of two timings below this is chance."""


class _Fit(NamedTuple):
    """A law that was tried, and the squares that it leaves."""

    squares: float
    burst_bytes: int
    burst_us: float
    wake_us: float


def idle_lane_law(rows: Sequence[CollectiveRow]) -> IdleLane | None:
    """Return the law of the rows; None where it makes no difference whether a lane idled."""
    timed = [row for row in rows if row.behind_us]
    if not timed:
        return None
    # A row that spreads weighs less: these are the roots of the weights.
    roots = 1 / np.hypot(LEAST_US, [row.spread_us for row in timed])
    sent = np.array([row.signature.bus_bytes if row.nodes > 1 else 0.0 for row in timed])
    longer_us = np.array([row.behind_us - row.median_us for row in timed])
    fit = min(_fit(sent, longer_us, roots, size) for size in SIZES)
    most_us = fit.burst_us + fit.wake_us
    if most_us < LEAST_US:
        return None
    return IdleLane(
        burst_bytes=fit.burst_bytes,
        burst_us=fit.burst_us,
        wake_us=fit.wake_us,
        error=math.sqrt(fit.squares / float(roots @ roots)) / most_us,
        samples=sum(row.samples for row in timed),
    )


def _fit(
    sent: NDArray[np.float64], longer_us: NDArray[np.float64], roots: NDArray[np.float64], size: int
) -> _Fit:
    """Return the law with a bucket of ``size``. ``sent``: bytes that rows send between nodes, as
    links of a node have no bucket; ``roots`` of the rows' weights."""
    from scipy.optimize import nnls

    terms = np.column_stack([np.minimum(1.0, sent / size), np.full_like(sent, -1.0)])
    (burst_us, wake_us), left = nnls(terms * roots[:, None], longer_us * roots)
    return _Fit(float(left**2), size, float(burst_us), float(wake_us))
