"""GEMM look-up: a measured row, else a table's interpolation, else a fit, else an assumption."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, cast, get_args

import numpy as np

from simulator.dtypes import MATH_BYTES
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    FIT_KINDS,
    NO_RATIOS,
    NO_ROOF,
    Estimate,
    FitKind,
    Roof,
    Source,
    expected,
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    row_error,
)
from simulator.lookup.experts import GroupedTable
from simulator.lookup.gemm_law import (  # fmt: skip
    ACCUMULATE_BYTES,
    FAR_OCTAVES,
    SAME_RATE,
    Floats,
    Law,
    Params,
    RooflineLaw,
    check_params,
    fit_roofline,
    make_law,
    moved_bytes,
)
from simulator.lookup.gemm_table import (
    MAX_POINTS,
    Curves,
    GemmCurves,
    GemmPoints,
    StoredCurves,
    way,
)
from simulator.ops import Gemm, Layout

Ranges = Mapping[str, tuple[int, int]]

BACKWARD: Final[tuple[Layout, ...]] = ("dgrad", "wgrad")


class GemmRow(NamedTuple):
    """One measured signature: median and spread of ``samples`` runs, in µs."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str
    accumulate: bool
    strides: tuple[int, int, int]
    median_us: float
    spread_us: float
    samples: int
    bias: bool = False

    @property
    def signature(self) -> Gemm:
        """The op that was timed."""
        layout = cast("Layout", self.layout)
        return Gemm(
            self.m, self.n, self.k, layout, self.dtype, self.accumulate, self.strides, self.bias
        )


class Backward(NamedTuple):
    """A product of backward in ``layout`` takes ``times`` as long as the forward one of its shape;
    ``error``: how far single shapes are from that."""

    layout: str
    times: float
    error: float


@dataclass(frozen=True, kw_only=True)
class GemmFit:
    """A law with its parameters, for one layout, dtype and way to write C.

    ``error`` is the mean relative error on (n, k) pairs held out of the fit; ``ranges``: least and
    most m, n and k of the fitted rows. ``curves``: those rows beside the law, where kernels differ
    more than a law tells. ``backward``: what few rows of other layouts show beside it. Raise
    ProfileError for impossible values.
    """

    law: str
    layout: str
    dtype: str
    accumulate: bool = False
    params: Params
    error: float
    ranges: Ranges
    kind: FitKind = "fitted"
    curves: Curves | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    backward: tuple[Backward, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = f"gemm fit of {self.layout} {self.dtype}"
        require_choice(owner, "layout", self.layout, get_args(Layout))
        require_choice(owner, "dtype", self.dtype, tuple(MATH_BYTES))
        require_number(owner, "error", self.error)
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        check_params(owner, self.law, self.params)
        for one in self.backward:
            require_choice(owner, "backward layout", one.layout, BACKWARD)
            require_positive(owner, f"times of {one.layout}", one.times)
            require_number(owner, f"error of {one.layout}", one.error)
        if set(self.ranges) != {"m", "n", "k"}:
            raise ProfileError(f"{owner}: ranges must be of m, n and k, got {sorted(self.ranges)}.")
        for name, (low, high) in self.ranges.items():
            require_count(owner, f"ranges.{name}", low)
            require_count(owner, f"ranges.{name}", high, low=low)


class _Rows:
    """Interpolation between the rows of one layout and dtype, built at the first look-up."""

    def __init__(self, rows: Sequence[GemmRow], law: Law) -> None:
        self._rows, self._law = rows, law
        self.ranges: Ranges = {
            name: (min(sizes), max(sizes))
            for name, sizes in zip("mnk", zip(*(row[:3] for row in rows), strict=True), strict=True)
        }

    @property
    def leave_out_error(self) -> float:
        return self._interpolation.leave_out_error

    def predict(self, gemm: Gemm) -> tuple[float, float]:
        """Return (µs, expected relative error)."""
        process = self._interpolation
        if isinstance(process, GemmCurves):
            return process.predict(gemm.m, gemm.n, gemm.k)
        return process.predict(gemm.m, gemm.n, gemm.k, _way(gemm))

    @cached_property
    def _interpolation(self) -> GemmCurves | GemmPoints:
        m, n, k, us = _columns(self._rows)
        if len(self._rows) > MAX_POINTS:
            return GemmCurves(m, n, k, us, self._law)
        spread_us = np.array([row.spread_us for row in self._rows], dtype=float)
        ways = np.array([_way(row.signature) for row in self._rows])
        return GemmPoints(np.stack([m, n, k], axis=1), us, spread_us, ways, self._law)


def _split(rows: Sequence[GemmRow], law: Law) -> dict[bool, _Rows]:
    """Return the rows by whether they add to C; up to MAX_POINTS rows, all serve both cases."""
    parts = {
        adds: [row for row in rows if row.accumulate == adds]
        for adds in sorted({row.accumulate for row in rows})
    }
    if rows and len(rows) <= MAX_POINTS:
        return dict.fromkeys(parts, _Rows(rows, law))
    return {adds: _Rows(part, law) for adds, part in parts.items()}


class _Family:
    """The rows, the fit or both of one (layout, dtype, accumulate)."""

    def __init__(self, law: Law, rows: _Rows | None, fit: GemmFit | None) -> None:
        self.law, self.fit = law, fit
        stored = fit.curves if fit is not None and rows is None else None
        self._curves = StoredCurves(stored, law) if stored else None
        self._rows = rows

    @property
    def leave_out_error(self) -> float:
        known = self._rows or self._curves
        return known.leave_out_error if known else 0.0

    def estimate(self, gemm: Gemm) -> Estimate:
        beyond_rows = beyond_fit = math.inf
        if self.fit is not None:
            beyond_fit = _octaves_outside(gemm, self.fit.ranges)
        if self._rows is not None:
            us, error = self._rows.predict(gemm)
            beyond_rows = _octaves_outside(gemm, self._rows.ranges)
        elif self._curves is not None:
            us, error = self._curves.predict(gemm.m, gemm.n, gemm.k)
            error = max(error, self.fit.error if self.fit else 0.0)
            beyond_fit = _octaves_outside(gemm, self._curves.ranges)
        else:
            assert self.fit is not None
            us, error = self.law.parts(gemm.m, gemm.n, gemm.k).total_us, self.fit.error
        beyond = min(beyond_rows, beyond_fit)
        source: Source = "interpolated" if beyond_rows == 0 else "fitted"
        if beyond > FAR_OCTAVES:
            source = "extrapolated"
        if beyond_rows > 0 and self.fit is not None and self.fit.kind == "assumed":
            source, error = "assumed", max(error, self.fit.error)
        return Estimate(us, source, error + expected.GEMM_OCTAVE.error * beyond)

    def backward(self, layout: str) -> Backward | None:
        """Return what is known of this family's products in another layout."""
        known = self.fit.backward if self.fit is not None else ()
        return next((one for one in known if one.layout == layout), None)


class GemmTable:
    """Look-up of GEMM times on one machine.

    ``peak_flops``: FLOP/s by dtype; ``memory_bandwidth``: bytes/s. ``times_bf16``: by dtype, how
    many times as long as in bf16 FLOPs take, for dtypes that were not timed. ``disagreement``: by
    how much sources of the timings differ, the least error of any look-up. ``looped``: rows are of
    loops over one GEMM. ``grouped``: what knows products in groups; without it, each is a call of
    its own. Look-ups are pure: the same signature always gives the same Estimate.
    """

    def __init__(
        self,
        rows: Sequence[GemmRow],
        *,
        fits: Sequence[GemmFit] = (),
        peak_flops: Mapping[str, float],
        memory_bandwidth: float,
        sm_count: int,
        roof: Roof = NO_ROOF,
        times_bf16: Mapping[str, float] = NO_RATIOS,
        disagreement: float = 0.0,
        looped: bool = False,
        grouped: GroupedTable | None = None,
    ) -> None:
        self._roof, self._grouped = roof, grouped
        self._disagreement, self._looped = disagreement, looped
        self._times_bf16 = times_bf16
        self._peak_flops = dict(peak_flops)
        self._bandwidth = memory_bandwidth
        self._exact = {row.signature: row for row in rows}
        self._families = self._build(rows, fits, sm_count)

    def _build(
        self, rows: Sequence[GemmRow], fits: Sequence[GemmFit], sm_count: int
    ) -> dict[tuple[str, str, bool], _Family]:
        grouped: dict[tuple[str, str], list[GemmRow]] = {(f.layout, f.dtype): [] for f in fits}
        for row in rows:
            grouped.setdefault((row.layout, row.dtype), []).append(row)
        families = {}
        for key, members in grouped.items():
            own = {f.accumulate: f for f in fits if (f.layout, f.dtype) == key}
            laws = {adds: make_law(fit.law, fit.params, sm_count) for adds, fit in own.items()}
            law = next(iter(laws.values()), None) or self._trend(members, key[1])
            parts = _split(members, law)
            # A single law is the trend of all rows; of two, each serves its own way to write C.
            for adds in sorted({*parts, *own} if len(own) > 1 else parts or own):
                fit = own.get(adds) or next(iter(own.values()), None)
                families[*key, adds] = _Family(laws.get(adds, law), parts.get(adds), fit)
        return families

    def _trend(self, rows: Sequence[GemmRow], dtype: str) -> Law:
        return fit_roofline(*_columns(rows)) or self._analytic(dtype)

    def estimate(self, gemm: Gemm) -> Estimate:
        """Return the duration of ``gemm``; raise MissingSectionError if its dtype is unknown."""
        found = self._looked_up(gemm)
        if found.error < self._disagreement:
            found = found._replace(error=self._disagreement)
        return self._roof.bounded(found, gemm.dtype, gemm.flops, moved_bytes(gemm))

    def _looked_up(self, gemm: Gemm) -> Estimate:
        if gemm.groups > 1:
            return self._in_groups(gemm)
        for dtype in _dtypes(gemm.dtype):
            row = self._exact.get(gemm._replace(dtype=dtype))
            if row is not None:
                error = row_error(row)
                if self._looped and in_l2(row, self._roof.l2_bytes):
                    memory_us = 1e6 * moved_bytes(gemm) / self._bandwidth
                    error = max(error, memory_us / row.median_us)
                return Estimate(row.median_us, "measured", error)
        best = next(self._candidates(gemm), None)
        if best is not None:
            layout, accumulate, family = best
            own = family.estimate(gemm._replace(accumulate=accumulate))
            known = family.backward(gemm.layout) if layout == "forward" else None
            return self._borrow(gemm, own, layout, accumulate, known)
        if self._like_bf16(gemm):
            return self._from_bf16(gemm)
        us = self._analytic(gemm.dtype).parts(gemm.m, gemm.n, gemm.k).total_us
        us += self._accumulate_us(gemm) if gemm.accumulate else 0.0
        return Estimate(us, "assumed", expected.GEMM_ANALYTIC.error)

    def _in_groups(self, gemm: Gemm) -> Estimate:
        """Return the time of a call of several products; without a law, each one's after the
        other."""
        known = self._grouped.estimate(gemm) if self._grouped else None
        if known is not None:
            return known
        one = self._looked_up(gemm._replace(groups=1))
        error = one.error + expected.GEMM_GROUPED.error
        return Estimate(gemm.groups * one.duration_us, "assumed", error)

    def _like_bf16(self, gemm: Gemm) -> bool:
        """Whether GEMMs of this dtype are taken from bf16's, which were timed."""
        halves = next(self._candidates(gemm._replace(dtype="bf16")), None)
        return gemm.dtype in self._times_bf16 and halves is not None

    def _from_bf16(self, gemm: Gemm) -> Estimate:
        """Return bf16's time, its FLOPs at the other dtype's peak and its bytes wider."""
        halves = gemm._replace(dtype="bf16")
        known = self._looked_up(halves)
        fixed, flops, memory = self.shares(halves)
        wider = moved_bytes(gemm) / moved_bytes(halves)
        after = fixed + flops * self._times_bf16[gemm.dtype] + memory * wider
        error = known.error + expected.GEMM_MATH.error
        return Estimate(known.duration_us * after, "assumed", error)

    def shares(self, gemm: Gemm) -> tuple[float, float, float]:
        """Return the fixed, FLOP-bound and memory-bound fractions of the time; they sum to 1."""
        known = self._grouped.shares(gemm) if self._grouped and gemm.groups > 1 else None
        if known is not None:
            return known
        if next(self._candidates(gemm), None) is None and self._like_bf16(gemm):
            halves = gemm._replace(dtype="bf16")
            fixed, flops, memory = self.shares(halves)
            flops *= self._times_bf16[gemm.dtype]
            memory *= moved_bytes(gemm) / moved_bytes(halves)
            total = fixed + flops + memory
            return fixed / total, flops / total, memory / total
        law: Law | None = next((family.law for _, _, family in self._candidates(gemm)), None)
        parts = (law or self._analytic(gemm.dtype)).parts(gemm.m, gemm.n, gemm.k)
        fixed, flops = parts.fixed_us / parts.total_us, parts.flops_us / parts.total_us
        return fixed, flops, 1.0 - fixed - flops

    def leave_out_error(self, layout: str = "forward", dtype: str = "bf16") -> float:
        """Return the interpolation's mean relative error with each shape left out; 0 without rows.

        With more than ``MAX_POINTS`` rows, each (n, k) is left out. Closed form over all rows.
        """
        for accumulate in (False, True):
            family = self._families.get((layout, dtype, accumulate))
            if family is not None:
                return family.leave_out_error
        return 0.0

    def _candidates(self, gemm: Gemm) -> Iterator[tuple[str, bool, _Family]]:
        """Yield the families that can answer, best first: own layout, then own way to write C."""
        for layout in (gemm.layout, *(other for other in get_args(Layout) if other != gemm.layout)):
            for accumulate in (gemm.accumulate, not gemm.accumulate):
                for dtype in _dtypes(gemm.dtype):
                    family = self._families.get((layout, dtype, accumulate))
                    if family is not None:
                        yield layout, accumulate, family

    def _borrow(
        self, gemm: Gemm, own: Estimate, layout: str, accumulate: bool, known: Backward | None
    ) -> Estimate:
        us, source, error = own
        us *= known.times if known else 1.0
        if gemm.strides != (0, 0, 0):
            error += expected.GEMM_STRIDES.error
        if accumulate != gemm.accumulate:
            extra = self._accumulate_us(gemm)
            us = us + extra if gemm.accumulate else max(us - extra, us / 2)
            error, source = error + expected.GEMM_ACCUMULATE.error, "assumed"
        if known:
            return Estimate(us, source, error + known.error)
        if layout != gemm.layout:
            wgrad = "wgrad" in (layout, gemm.layout)
            borrowed = expected.GEMM_WGRAD if wgrad else expected.GEMM_DGRAD
            error, source = error + borrowed.error, "assumed"
        return Estimate(us, source, error)

    def _accumulate_us(self, gemm: Gemm) -> float:
        return gemm.m * gemm.n * ACCUMULATE_BYTES / self._bandwidth * 1e6

    def _analytic(self, dtype: str) -> RooflineLaw:
        peak = next((self._peak_flops[d] for d in _dtypes(dtype) if d in self._peak_flops), None)
        if peak is None:
            raise MissingSectionError(
                f"The profile has no GEMM rows, fit or peak FLOP/s for dtype {dtype!r}; it knows "
                f"the peak of {', '.join(sorted(self._peak_flops)) or 'none'}. Use one of these, "
                "or measure this dtype."
            )
        return RooflineLaw(
            fixed_us=0.0, flops_per_us=peak * 1e-6, bytes_per_us=self._bandwidth * 1e-6,
            element_bytes=MATH_BYTES[dtype],
        )  # fmt: skip


def in_l2(row: GemmRow, l2_bytes: int) -> bool:
    """Return whether the row's operands and product fit the L2, where a loop finds them."""
    return moved_bytes(row.signature) <= l2_bytes


def _dtypes(dtype: str) -> tuple[str, ...]:
    same = SAME_RATE.get(dtype)
    return (dtype,) if same is None else (dtype, same)


def _way(gemm: Gemm) -> int:
    return way(accumulate=gemm.accumulate, bias=gemm.bias, strided=gemm.strides != (0, 0, 0))


def _columns(rows: Sequence[GemmRow]) -> tuple[Floats, Floats, Floats, Floats]:
    table = np.array([(row[0], row[1], row[2], row[7]) for row in rows], dtype=float).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _octaves_outside(gemm: Gemm, ranges: Ranges) -> float:
    """Return the doublings by which the shape is outside ``ranges``, in its worst dimension."""
    return math.log2(max(reach(getattr(gemm, name), *ranges[name]) for name in "mnk"))
