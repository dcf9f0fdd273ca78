"""Grouped GEMMs: the products of a rank's experts, by rows an expert, experts and sizes.

Law: the tiles of all products share the SMs, as if each product had its share of them; their bytes,
every expert's weights among them, move beside. So few rows an expert leave tiles half empty, and
fewer still wait for weights. ``params`` are the law of kernels that take all experts in one launch,
which others timed in inference servers. A trainer's linear layers take ``times`` as long, by
layout: they issue a GEMM an expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, get_args

from simulator.dtypes import MATH_BYTES
from simulator.errors import ProfileError
from simulator.estimate import Estimate
from simulator.lookup import (
    FIT_KINDS,
    FitKind,
    expected,
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    row_error,
)
from simulator.lookup.gemm_bytes import FAR_OCTAVES, SAME_RATE, moved_bytes
from simulator.lookup.gemm_law import Params, Parts, TiledLaw, check_params, make_law
from simulator.ops import Gemm, Layout

LAW: Final = "tiled"
RANGES: Final = ("groups", "rows", "n", "k")


class GroupedRow(NamedTuple):
    """One measured call: median and spread of ``samples`` runs, in us."""

    groups: int
    m: int
    n: int
    k: int
    layout: str
    dtype: str
    accumulate: bool
    median_us: float
    spread_us: float
    samples: int

    @property
    def signature(self) -> Gemm:
        """The op that was timed."""
        return Gemm(
            self.m, self.n, self.k, cast("Layout", self.layout), self.dtype, self.accumulate,
            groups=self.groups,
        )  # fmt: skip


class Times(NamedTuple):
    """How many times as long as the law says a trainer's calls multiply, and move bytes."""

    flops: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class GroupedFit:
    """The law of one dtype.

    ``group_us``: what each expert adds to a call. ``withheld_error``: the law's mean error on
    models withheld from the fit; ``error``: that of a look-up. ``ranges``: least and most groups,
    rows an expert, n and k of the fitted rows' forward products.
    """

    dtype: str
    params: Params
    group_us: float
    times: Mapping[str, Times]
    withheld_error: float
    error: float
    ranges: Mapping[str, tuple[int, int]]
    kind: FitKind = "fitted"

    def __post_init__(self) -> None:
        owner = f"grouped gemm fit of {self.dtype}"
        require_choice(owner, "dtype", self.dtype, tuple(MATH_BYTES))
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        check_params(owner, LAW, self.params)
        for name in ("group_us", "withheld_error", "error"):
            require_number(owner, name, getattr(self, name))
        if set(self.times) != set(get_args(Layout)):
            raise ProfileError(
                f"{owner}: times must be of {', '.join(get_args(Layout))}, got "
                f"{sorted(self.times)}."
            )
        for layout, times in self.times.items():
            for name, value in zip(Times._fields, times, strict=True):
                require_positive(owner, f"times.{layout}.{name}", value)
        if set(self.ranges) != set(RANGES):
            raise ProfileError(
                f"{owner}: ranges must be of {', '.join(RANGES)}, got {sorted(self.ranges)}."
            )
        for name, (low, high) in self.ranges.items():
            require_count(owner, f"ranges.{name}", low)
            require_count(owner, f"ranges.{name}", high, low=low)


class GroupedLaw:
    """A fit's law on a GPU of ``sm_count`` SMs."""

    def __init__(self, fit: GroupedFit, sm_count: int) -> None:
        self.fit, self._sms = fit, sm_count
        self._law = cast("TiledLaw", make_law(LAW, fit.params, sm_count))

    def parts(self, gemm: Gemm, *, times: Times | None = None) -> Parts:
        """Return the call's time and its fixed, FLOP-bound and memory-bound parts.

        ``times`` replaces those of the gemm's layout.
        """
        law, (flops, memory) = self._law, times or self.fit.times[gemm.layout]
        each_us = law.multiply_us(gemm.m, gemm.n, gemm.k, self._sms / gemm.groups)
        compute_us = flops * each_us * law.slower(1e-9 * gemm.flops)
        found = law.joined(compute_us, memory * law.move_us(1e-6 * moved_bytes(gemm)))
        more_us = self.fit.group_us * gemm.groups
        return found._replace(total_us=found.total_us + more_us, fixed_us=found.fixed_us + more_us)

    def octaves_outside(self, gemm: Gemm) -> float:
        """Return the doublings by which the call is outside the fitted rows, in its worst size."""
        rows, n, k = gemm.m, gemm.n, gemm.k
        if gemm.layout == "wgrad":
            rows, n, k = gemm.k, gemm.m, gemm.n
        sizes = {"groups": gemm.groups, "rows": rows, "n": n, "k": k}
        return math.log2(max(reach(sizes[name], *self.fit.ranges[name]) for name in RANGES))


class GroupedTable:
    """Look-up of grouped GEMMs: a measured row, else the law of the dtype."""

    def __init__(
        self, rows: Iterable[GroupedRow], fits: Iterable[GroupedFit], sm_count: int
    ) -> None:
        self._exact = {row.signature: row for row in rows}
        self._laws = {fit.dtype: GroupedLaw(fit, sm_count) for fit in fits}

    def estimate(self, gemm: Gemm) -> Estimate | None:
        """Return the call's duration; None for a dtype without law."""
        gemm = _as_fitted(gemm)
        row = self._exact.get(gemm)
        if row is not None:
            return Estimate(row.median_us, "measured", row_error(row))
        law = self._laws.get(gemm.dtype)
        if law is None:
            return None
        beyond = law.octaves_outside(gemm)
        error = law.fit.error + expected.GEMM_OCTAVE.error * beyond
        far = beyond > FAR_OCTAVES and law.fit.kind == "fitted"
        return Estimate(law.parts(gemm).total_us, "extrapolated" if far else law.fit.kind, error)

    def shares(self, gemm: Gemm) -> tuple[float, float, float] | None:
        """Return the fixed, FLOP-bound and memory-bound fractions; None without law."""
        gemm = _as_fitted(gemm)
        law = self._laws.get(gemm.dtype)
        if law is None:
            return None
        parts = law.parts(gemm)
        fixed, flops = parts.fixed_us / parts.total_us, parts.flops_us / parts.total_us
        return fixed, flops, 1.0 - fixed - flops


def _as_fitted(gemm: Gemm) -> Gemm:
    """Return the call in the dtype of its law, packed and without bias."""
    dtype = SAME_RATE.get(gemm.dtype, gemm.dtype)
    return gemm._replace(dtype=dtype, strides=(0, 0, 0), bias=False)
