"""Curves of a table that a profile stores beside a law: times over the law's, by (n, k) and m."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from simulator.errors import ProfileError
from simulator.lookup import require_count
from simulator.lookup.gemm_law import Floats, Law
from simulator.lookup.gemm_table import GemmCurves

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
