"""Fit fixed cost, bandwidth in cache, knee and bandwidth in memory to pointwise timings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from lab.fits.common import Floats, mape, rounded
from simulator.errors import InputError
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow

MB = 1_000_000
KNEES_MB = (10, 15, 20, 25, 30, 35, 40, 50, 60, 80)
_RESOLUTION_US = 1.0  # tables have whole microseconds: reduces the weight of short times


def fit_pointwise(
    rows: Sequence[PointwiseRow], names: tuple[str, ...], *, knees_mb: Sequence[int] = KNEES_MB
) -> PointwiseFit:
    """Fit the law for ``names`` to rows of one op; ``error`` is of withheld sizes, five folds."""
    if len(rows) < 10:
        raise InputError(f"A law for {names} needs at least 10 timings, got {len(rows)}.")
    rows = sorted(rows, key=lambda row: (row.bytes_read + row.bytes_written, row.key))
    sizes = np.array([row.bytes_read + row.bytes_written for row in rows], dtype=np.float64) / MB
    times = np.array([row.median_us for row in rows])
    knee, (fixed, small, large) = _solve(sizes, times, knees_mb)
    return PointwiseFit(
        names=names,
        fixed_us=rounded(fixed),
        small_gb_s=rounded(1e3 / max(small, 1e-6)),
        knee_bytes=knee * MB,
        large_gb_s=rounded(1e3 / max(large, 1e-6)),
        max_bytes=int(sizes[-1] * MB),
        error=rounded(_withheld_error(sizes, times, knees_mb), 2),
    )


def _design(sizes: Floats, knee: float) -> Floats:
    small = np.minimum(sizes, knee)
    return np.stack([np.ones_like(sizes), small, sizes - small], axis=1)


def _solve(sizes: Floats, times: Floats, knees: Sequence[int]) -> tuple[int, Floats]:
    """Return the best knee and (fixed us, us per MB below it, us per MB above it)."""
    weights = 1 / (times + _RESOLUTION_US)
    best: tuple[float, int, Floats] | None = None
    for knee in knees:
        design = _design(sizes, knee) * weights[:, None]
        scale = design.max(axis=0)
        scale[scale == 0] = 1.0
        found, residual = nnls(design / scale, times * weights)
        if best is None or residual < best[0]:
            best = (float(residual), knee, np.asarray(found / scale))
    assert best is not None
    return best[1], best[2]


def _withheld_error(sizes: Floats, times: Floats, knees: Sequence[int]) -> float:
    """Return the mean relative error of every fifth size, for times well above the resolution."""
    fold = np.arange(len(sizes)) % 5
    predicted = np.empty_like(times)
    for out in range(5):
        knee, coefficients = _solve(sizes[fold != out], times[fold != out], knees)
        predicted[fold == out] = _design(sizes[fold == out], knee) @ coefficients
    clear = times >= 5 * _RESOLUTION_US
    return mape(predicted[clear], times[clear])
