"""Interpolation between scattered GEMM rows: a law's trend, corrected by similar rows.

A Gaussian process over (log m, log n, log k) models log(measured / law). Its kernel has a smooth
part, a part shared by shapes with the same tile grid (the same m, nearly the same n), and a part
shared by shapes that differ only in m. Rows that write C in another way (adding, with a bias,
strided) differ by offsets and share the rest. The inverted matrix has one row per GEMM row; tables
with more than MAX_POINTS rows are dense enough for ``gemm_table``.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from simulator.lookup.gaussian import calibrated, kernel
from simulator.lookup.gemm_law import Floats, Ints, Law

MAX_POINTS: Final = 2500
# Kernel: variance · exp(−|Δ ln m| / a − |Δ ln n| / b − |Δ ln k| / c); length 0.01 means "the same".
# Near maximum likelihood on rows of an H200 in three layouts.
_PARTS: Final = (
    (6e-2, (25.0, 12.0, 12.0)),
    (8e-4, (0.01, 0.1, 2.0)),
    (5e-4, (5.0, 0.01, 0.01)),
)
# The share of the kernel that only rows with the same way to write C have in common, and an extra
# variance that such rows share: a third for each equal property of three (see ``way``).
_OWN_SHARE: Final = 0.2
_OFFSET: Final = 2e-2
_PRIOR: Final = _OFFSET + sum(variance for variance, _ in _PARTS)
# Variance of a row: the GPU chooses kernels by shape, and the row's runs differed.
_NOISE: Final = 1.5e-4
_SPREAD_SHARE: Final = 0.3
_NEAREST: Final = 64


def way(*, accumulate: bool, bias: bool, strided: bool) -> int:
    """Return the number of a way to write C: one bit per property."""
    return accumulate + 2 * bias + 4 * strided


class GemmPoints:
    """Rows of one layout and dtype: ``shapes`` [rows, 3] (m, n, k), other arrays [rows], rows ≥ 1.

    ``us`` and ``spread_us`` are medians and spreads of runs, ``ways`` numbers from ``way``.
    """

    def __init__(self, shapes: Floats, us: Floats, spread_us: Floats, ways: Ints, law: Law) -> None:
        order = np.lexsort((ways, *shapes.T))
        shapes, us, spread_us = shapes[order], us[order], spread_us[order]
        self.law = law
        self._points, self._ways = np.log(shapes), ways[order]
        residual = np.log(us / law.times_us(*shapes.T))
        self._mean = float(residual.mean())
        self._noise = _NOISE + _SPREAD_SHARE * (spread_us / us) ** 2
        covariance = _kernel(self._points, self._ways, self._points, self._ways)
        inverse: Floats = np.linalg.inv(covariance + np.diag(self._noise)).astype(np.float64)
        self._weights = inverse @ (residual - self._mean)
        self.leave_out_error, self._error_per_sd = calibrated(*self._left_out(shapes, inverse))

    def _left_out(self, shapes: Floats, inverse: Floats) -> tuple[Floats, Floats]:
        """Return each row's error with its shape left out (closed form), and the expected one."""
        _, owner = np.unique(shapes, axis=0, return_inverse=True)
        errors, deviations = np.empty(len(owner)), np.empty(len(owner))
        for shape in range(int(owner.max()) + 1):
            rows = np.flatnonzero(owner.reshape(-1) == shape)
            variance = np.linalg.inv(inverse[np.ix_(rows, rows)])
            errors[rows] = variance @ self._weights[rows]
            deviations[rows] = np.sqrt(np.diag(variance))
        return errors, deviations

    def predict(self, m: int, n: int, k: int, wanted: int) -> tuple[float, float]:
        """Return (µs, expected relative error) of one shape; ``wanted`` is the way to write C."""
        near = _kernel(np.log([[m, n, k]]), np.array([wanted]), self._points, self._ways)[0]
        log_factor = self._mean + float(near @ self._weights)
        error = self._error_per_sd * math.sqrt(self._variance(near))
        return self.law.parts(m, n, k).total_us * math.exp(log_factor), error

    def _variance(self, near: Floats) -> float:
        """Return the variance that the nearest rows leave; rows further away hardly change it."""
        rows = np.argsort(-near, kind="stable")[:_NEAREST]
        points, ways = self._points[rows], self._ways[rows]
        among = _kernel(points, ways, points, ways) + np.diag(self._noise[rows])
        return max(_PRIOR + _NOISE - float(near[rows] @ np.linalg.solve(among, near[rows])), _NOISE)


def _kernel(left: Floats, left_ways: Ints, right: Floats, right_ways: Ints) -> Floats:
    shared = kernel(left, right, _PARTS)
    differ = left_ways[:, None] ^ right_ways[None, :]
    alike = 3 - sum(differ >> bit & 1 for bit in range(3))
    total: Floats = shared * np.where(alike == 3, 1.0, 1.0 - _OWN_SHARE) + _OFFSET / 3 * alike
    return total
