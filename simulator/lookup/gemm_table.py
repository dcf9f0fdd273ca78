"""Interpolation in a dense table of GEMM times: a law's trend, corrected by neighbouring rows.

Every (n, k) of the table is a curve over m of log(measured / law). A Gaussian process over
(log n, log k) joins the curves. Its kernel has a smooth part, and a part shared only by curves of
nearly the same n, which have the same tile grid at every m. Its variance, scaled to the real
errors with each curve left out, gives the expected error of a look-up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

import numpy as np

from simulator.lookup.gaussian import calibrated, kernel
from simulator.lookup.gemm_law import Floats, Ints, Law

# Kernel: variance · exp(−|Δ ln n| / a − |Δ ln k| / b). Near maximum likelihood on published H100
# rows.
_PARTS: Final = ((5e-3, (2.0, 2.0)), (2e-3, (0.07, 2.0)))
_PRIOR: Final = sum(variance for variance, _ in _PARTS)
_NOISE: Final = 5e-4
MAX_CURVES: Final = 800
_MAX_GRID: Final = 400


class GemmCurves:
    """Rows of one layout and dtype, as arrays m, n, k and us of equal length ≥ 1."""

    def __init__(self, m: Floats, n: Floats, k: Floats, us: Floats, law: Law) -> None:
        self.law = law
        self.ranges = {
            name: (int(values.min()), int(values.max()))
            for name, values in (("m", m), ("n", n), ("k", k))
        }
        residual = np.log(us / law.times_us(m, n, k))
        pairs, owner = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
        chosen = _thin(np.arange(len(pairs), dtype=float), MAX_CURVES).astype(int)
        self._points = np.log(pairs[chosen])
        grid = np.log(_thin(np.unique(m), _MAX_GRID))
        self._grid: list[float] = grid.tolist()
        curves = _curves(grid, np.log(m), residual, owner.reshape(-1), chosen)
        self._mean = curves.mean(axis=0)
        self._inverse = np.linalg.inv(
            kernel(self._points, self._points, _PARTS) + _NOISE * np.eye(len(chosen))
        )
        self._weights = self._inverse @ (curves - self._mean)
        precision = np.diag(self._inverse)
        self.leave_out_error, self._error_per_sd = calibrated(
            self._weights / precision[:, None], precision**-0.5
        )
        self._cache: dict[tuple[int, int], tuple[list[float], float]] = {}

    def predict(self, m: int, n: int, k: int) -> tuple[float, float]:
        """Return (µs, expected relative error) of one shape."""
        curve, error = self._curve(n, k)
        return self.law.parts(m, n, k).total_us * math.exp(self._at(curve, math.log(m))), error

    def _at(self, curve: list[float], log_m: float) -> float:
        right = bisect_right(self._grid, log_m)
        if right == 0:
            return curve[0]
        if right == len(curve):
            return curve[-1]
        low, high = self._grid[right - 1], self._grid[right]
        share = (log_m - low) / (high - low)
        return curve[right - 1] * (1 - share) + curve[right] * share

    def _curve(self, n: int, k: int) -> tuple[list[float], float]:
        found = self._cache.get((n, k))
        if found is None:
            near = kernel(np.log([[n, k]]), self._points, _PARTS)[0]
            curve: list[float] = (self._mean + near @ self._weights).tolist()
            variance = _PRIOR + _NOISE - float(near @ self._inverse @ near)
            found = curve, self._error_per_sd * math.sqrt(max(variance, _NOISE))
            self._cache[n, k] = found
        return found


def _thin(values: Floats, limit: int) -> Floats:
    """Return at most ``limit`` of the sorted ``values``, evenly spread, with both ends."""
    if len(values) <= limit:
        return values
    chosen = np.linspace(0, len(values) - 1, limit).round().astype(int)
    thinned: Floats = values[chosen]
    return thinned


def _curves(grid: Floats, log_m: Floats, residual: Floats, owner: Ints, chosen: Ints) -> Floats:
    """Return [chosen pairs, grid]: residuals on the grid of log m, flat beyond a pair's ends."""
    order = np.lexsort((log_m, owner))
    starts = np.searchsorted(owner[order], np.arange(int(owner.max()) + 2))
    rows = np.empty((len(chosen), len(grid)))
    for index, pair in enumerate(chosen):
        part = order[starts[pair] : starts[pair + 1]]
        rows[index] = np.interp(grid, log_m[part], residual[part])
    return rows
