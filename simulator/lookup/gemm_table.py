"""Interpolation between GEMM rows: a law's trend, corrected by rows of a table or scattered ones.

Every (n, k) of the table is a curve over m of log(measured / law). A Gaussian process over
(log n, log k) joins the curves. Its kernel has a smooth part, and a part shared only by curves of
nearly the same n, which have the same tile grid at every m. Its variance, scaled to the real
errors with each curve left out, gives the expected error of a look-up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from simulator.errors import ProfileError
from simulator.lookup import require_count
from simulator.lookup.gemm_law import Floats, Ints, Law

# Shared parts of Gaussian processes over shapes ---------------------------------------------------
# The kernel, and the calibration of errors.

# Prior of the leave-out error, and its weight in rows.
_PRIOR_ERROR: Final = 0.08
_PRIOR_ROWS: Final = 4


def kernel(left: Floats, right: Floats, parts: Sequence[tuple[float, Sequence[float]]]) -> Floats:
    """Return the sum of variance · exp(−Σ |Δ| / length) over ``parts`` (variance, axes' lengths).

    ``left`` and ``right`` are points [points, axes]; the result is [left points, right points].
    """
    axes = range(left.shape[1])
    deltas = [np.abs(left[:, None, axis] - right[None, :, axis]) for axis in axes]
    total: Floats = np.zeros((len(left), len(right)))
    for variance, lengths in parts:
        total += variance * np.exp(
            -sum(delta / length for delta, length in zip(deltas, lengths, strict=True))
        )
    return total


def calibrated(log_errors: Floats, deviations: Floats) -> tuple[float, float]:
    """Return (mean leave-out error, expected relative error per deviation). The second scales a
    process's own deviations to its real errors.

    ``log_errors``: log(measured / looked up) of each row (or curve) when it is left out;
    ``deviations``: the process's own standard deviation of it. With one row, the prior dominates.
    """
    count = len(deviations)
    left_out = float(np.abs(np.expm1(log_errors)).mean())
    expected = (count * left_out + _PRIOR_ROWS * _PRIOR_ERROR) / (count + _PRIOR_ROWS)
    return left_out if count > 1 else expected, expected / float(np.mean(deviations))


# Interpolation in a dense table of GEMM times -----------------------------------------------------
# A law's trend, corrected by neighbouring rows.

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


# Interpolation between scattered GEMM rows --------------------------------------------------------
# A law's trend, corrected by similar rows.
#
# A Gaussian process over (log m, log n, log k) models log(measured / law). Its kernel has a smooth
# part, a part shared by shapes with the same tile grid (the same m, nearly the same n), and a part
# shared by shapes that differ only in m. Rows that write C in another way (adding, with a bias,
# strided) differ by offsets and share the rest. The inverted matrix has one row per GEMM row;
# tables with more than MAX_POINTS rows are dense enough for ``gemm_table``.

MAX_POINTS: Final = 2500
# Kernel: variance · exp(−|Δ ln m| / a − |Δ ln n| / b − |Δ ln k| / c); length 0.01 means "the same".
# Near maximum likelihood on rows of an H200 in three layouts.
_POINT_PARTS: Final = (
    (6e-2, (25.0, 12.0, 12.0)),
    (8e-4, (0.01, 0.1, 2.0)),
    (5e-4, (5.0, 0.01, 0.01)),
)
# The share of the kernel that only rows with the same way to write C have in common, and an extra
# variance that such rows share: a third for each equal property of three (see ``way``).
_OWN_SHARE: Final = 0.2
_OFFSET: Final = 2e-2
_POINT_PRIOR: Final = _OFFSET + sum(variance for variance, _ in _POINT_PARTS)
# Variance of a row: the GPU chooses kernels by shape, and the row's runs differed.
_POINT_NOISE: Final = 1.5e-4
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
        self._noise = _POINT_NOISE + _SPREAD_SHARE * (spread_us / us) ** 2
        covariance = _kernel(self._points, self._ways, self._points, self._ways)
        inverse: Floats = np.linalg.inv(covariance + np.diag(self._noise)).astype(np.float64)
        self._weights = inverse @ (residual - self._mean)
        self.leave_out_error, self._error_per_sd = calibrated(*self._left_out(shapes, inverse))

    def _left_out(self, shapes: Floats, inverse: Floats) -> tuple[Floats, Floats]:
        """Return each row's error with its shape left out (closed form), and the expected one."""
        _, owner = np.unique(shapes, axis=0, return_inverse=True)
        owner = owner.reshape(-1)
        errors, deviations = np.empty(len(owner)), np.empty(len(owner))
        order, counts = np.argsort(owner, kind="stable"), np.bincount(owner)
        ends = np.cumsum(counts)
        for count in np.unique(counts):  # shapes with equally many rows at once
            begins = (ends - counts)[counts == count]
            rows = order[begins[:, None] + np.arange(count)]
            variance = np.linalg.inv(inverse[rows[:, :, None], rows[:, None, :]])
            errors[rows] = (variance @ self._weights[rows][..., None])[..., 0]
            deviations[rows] = np.sqrt(np.diagonal(variance, axis1=1, axis2=2))
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
        return max(
            _POINT_PRIOR + _POINT_NOISE - float(near[rows] @ np.linalg.solve(among, near[rows])),
            _POINT_NOISE,
        )


def _kernel(left: Floats, left_ways: Ints, right: Floats, right_ways: Ints) -> Floats:
    shared = kernel(left, right, _POINT_PARTS)
    differ = left_ways[:, None] ^ right_ways[None, :]
    alike = 3 - sum(differ >> bit & 1 for bit in range(3))
    total: Floats = shared * np.where(alike == 3, 1.0, 1.0 - _OWN_SHARE) + _OFFSET / 3 * alike
    return total


# Curves of a table that a profile stores beside a law ---------------------------------------------
# Times over the law's, by (n, k) and m.

PERMILLE: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Curves:
    """``permille[i][j]``: what the GEMM of ``nk[i]`` takes at ``m[j]``, in 1/1000 of the law."""

    m: tuple[int, ...]
    nk: tuple[tuple[int, int], ...]
    permille: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.m or not self.nk or list(self.m) != sorted(set(self.m)):
            raise ProfileError("gemm curves: m and nk must not be empty, and m must rise.")
        if len(self.permille) != len(self.nk) or {len(one) for one in self.permille} != {
            len(self.m)
        }:
            raise ProfileError(
                f"gemm curves: permille must have {len(self.nk)} curves of {len(self.m)} numbers."
            )
        for what, numbers in (
            ("m", self.m), *(("nk", one) for one in self.nk),
            *(("permille", one) for one in self.permille),
        ):  # fmt: skip
            for number in numbers:
                require_count("gemm curves", what, number)


class StoredCurves:
    """The look-up between a fit's curves, built at the first one."""

    def __init__(self, curves: Curves, law: Law) -> None:
        self._curves, self._law = curves, law
        self.ranges = {
            name: (min(sizes), max(sizes))
            for name, sizes in zip("mnk", (curves.m, *zip(*curves.nk, strict=True)), strict=True)
        }

    @property
    def leave_out_error(self) -> float:
        """The mean error of a curve that is left out."""
        return self._table.leave_out_error

    def predict(self, m: int, n: int, k: int) -> tuple[float, float]:
        """Return (µs, expected relative error)."""
        return self._table.predict(m, n, k)

    @cached_property
    def _table(self) -> GemmCurves:
        m, n, k, over = columns(self._curves)
        return GemmCurves(m, n, k, self._law.times_us(m, n, k) * over, self._law)


def columns(curves: Curves) -> tuple[Floats, Floats, Floats, Floats]:
    """Return m, n, k and the time over the law's of each point."""
    pairs = np.array(curves.nk, dtype=np.float64)
    m = np.tile(np.array(curves.m, dtype=np.float64), len(pairs))
    n, k = (np.repeat(pairs[:, column], len(curves.m)) for column in (0, 1))
    over: Floats = np.array(curves.permille, dtype=np.float64).reshape(-1) / PERMILLE
    return m, n, k, over


def curves_of(m: Floats, n: Floats, k: Floats, us: Floats, law: Law) -> Curves:
    """Return the curves of rows. What a pair lacks is interpolated over m; outside its rows it has
    its nearest one's."""
    grid = np.unique(m)
    pairs, owner = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    over = PERMILLE * us / law.times_us(m, n, k)
    found = []
    for index in range(len(pairs)):
        mine = np.flatnonzero(owner.reshape(-1) == index)
        mine = mine[np.argsort(m[mine])]
        found.append(np.interp(np.log(grid), np.log(m[mine]), over[mine]))
    return Curves(
        m=tuple(int(one) for one in grid),
        nk=tuple((int(a), int(b)) for a, b in pairs),
        permille=tuple(tuple(max(1, round(float(one))) for one in curve) for curve in found),
    )
