"""Pointwise ops: a fixed cost plus bytes / bandwidth, of the cache up to a knee, then of memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import (
    FIT_KINDS,
    NO_ROOF,
    Estimate,
    FitKind,
    Roof,
    expected,
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    row_error,
    widened,
)
from simulator.ops import Pointwise

DEFAULT: Final = "default"  # the law of every name that no fit lists
SUMMED: Final = "scatter_add"  # atomic adds of rows to those of an index
SUMMED_GB_S_AN_SM: Final = 0.877
"""Rate of PyTorch's on an H20, in 1e9 bytes of two-byte elements added a second
(data/measured/moe/scatter_add.csv)."""
SUMMED_MHZ: Final = 1980
"""Clock of that; at 0.71 of it an A100's SM reaches 0.73 of the rate."""


@dataclass(frozen=True, kw_only=True)
class PointwiseRow:
    """One timing of one signature."""

    name: str
    bytes_read: int
    bytes_written: int
    dtype: str = "bf16"
    pieces: int = 1
    median_us: float
    spread_us: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        owner = f"pointwise row {self.key}"
        for name in ("bytes_read", "bytes_written"):
            require_count(owner, name, getattr(self, name), low=0)
        require_count(owner, "samples", self.samples)
        require_positive(owner, "median_us", self.median_us)
        require_number(owner, "spread_us", self.spread_us)

    @property
    def signature(self) -> Pointwise:
        """The op that was timed."""
        return Pointwise(self.name, self.bytes_read, self.bytes_written, self.dtype, self.pieces)

    @property
    def key(self) -> tuple[str, int, int, str, int]:
        """Sort key: name, bytes, dtype, pieces."""
        return self.name, self.bytes_read, self.bytes_written, self.dtype, self.pieces


@dataclass(frozen=True, kw_only=True)
class PointwiseFit:
    """fixed + bytes up to the knee at one bandwidth + bytes beyond it at another.

    ``names``: ops of this law; a fit that lists ``default`` serves all others. GB = 1e9 bytes.
    """

    names: tuple[str, ...]
    fixed_us: float
    small_gb_s: float
    knee_bytes: int
    large_gb_s: float
    max_bytes: int
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        owner = f"pointwise fit {'/'.join(self.names) or '(no names)'}"
        if not self.names:
            raise ProfileError(f"{owner}: names must list at least one op.")
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        for name in ("small_gb_s", "large_gb_s"):
            require_positive(owner, name, getattr(self, name))
        for name in ("fixed_us", "error"):
            require_number(owner, name, getattr(self, name))
        for name in ("knee_bytes", "max_bytes"):
            require_count(owner, name, getattr(self, name))

    def memory_us(self, total_bytes: int) -> float:
        """Return the time beyond the fixed cost, in µs."""
        small = min(total_bytes, self.knee_bytes) / self.small_gb_s
        return (small + max(0, total_bytes - self.knee_bytes) / self.large_gb_s) / 1e3


def with_sums(
    fits: Sequence[PointwiseFit], sm_count: int, boost_mhz: int | None = None
) -> tuple[PointwiseFit, ...]:
    """Return the laws of a GPU, and an assumed one of rows that are summed by index, where they
    have none: beside the default's fixed cost it is as fast by SM and clock as elsewhere, or by SM
    alone where the clock is not known."""
    laws = {name: fit for fit in fits for name in fit.names}
    if SUMMED in laws or DEFAULT not in laws:
        return tuple(fits)
    gb_s = SUMMED_GB_S_AN_SM * sm_count * (boost_mhz or SUMMED_MHZ) / SUMMED_MHZ
    own = replace(
        laws[DEFAULT], names=(SUMMED,), small_gb_s=gb_s, large_gb_s=gb_s, kind="assumed",
        error=expected.POINTWISE_SUMS.error,
    )  # fmt: skip
    return (*fits, own)


class PointwiseTable:
    """Look-up of pointwise ops; raise MissingSectionError for a name without rows and law."""

    def __init__(
        self,
        rows: Iterable[PointwiseRow] = (),
        fits: Iterable[PointwiseFit] = (),
        *,
        table_error: float = expected.POINTWISE_TABLE.error,
        roof: Roof = NO_ROOF,
    ) -> None:
        self._exact: dict[Pointwise, PointwiseRow] = {}
        self._by_name: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            self._exact[row.signature] = row
            size = row.bytes_read + row.bytes_written
            self._by_name.setdefault(row.name, []).append((size, row.median_us))
        for timings in self._by_name.values():
            timings.sort()
        self._fits = {name: fit for fit in fits for name in fit.names}
        self._table_error = table_error
        self._roof = roof

    def has(self, name: str) -> bool:
        """Return whether ops of this name can be looked up."""
        return name in self._by_name or self._fit(name) is not None

    def estimate(self, op: Pointwise) -> Estimate:
        """Return the duration alone on the machine."""
        moved = op.moved_bytes
        return self._roof.bounded(self._estimate(op), op.dtype, 0, moved)

    def _estimate(self, op: Pointwise) -> Estimate:
        if op.kernels > 1:
            return self._apart(op)
        row = self._exact.get(op)
        if row is not None:
            return Estimate(row.median_us, "measured", row_error(row))
        total = max(1, op.moved_bytes)
        if op.name in self._by_name:
            return self._between(self._by_name[op.name], total)
        fit = self._fit(op.name)
        if fit is None:
            raise MissingSectionError(
                f"The profile's pointwise section has no {op.name!r} and no {DEFAULT!r} law; it "
                f"has {', '.join(sorted({*self._by_name, *self._fits})) or 'nothing'}."
            )
        source, error = widened(fit.kind, fit.error, reach(total, 1, fit.max_bytes))
        if op.name not in self._fits:
            source, error = "assumed", max(error, expected.POINTWISE_DEFAULT.error)
        return Estimate(fit.fixed_us + fit.memory_us(total), source, error)

    def _apart(self, op: Pointwise) -> Estimate:
        """Return the time of several kernels, which nobody timed together."""
        one = op._replace(kernels=1)
        fixed, _ = self.shares(one)
        plain = self._estimate(one)
        error = max(plain.error, expected.POINTWISE_DEFAULT.error)
        return Estimate(plain.duration_us + (op.kernels - 1) * fixed, "assumed", error)

    def shares(self, op: Pointwise) -> tuple[float, float]:
        """Return (fixed, memory) in µs; they sum to the estimate's duration."""
        total = self.estimate(op).duration_us
        timings = self._by_name.get(op.name)
        if timings is None:
            fit = self._fit(op.name)
            assert fit is not None
            return fit.fixed_us, total - fit.fixed_us
        fixed = min(timings[0][1], total) if len(timings) > 1 else 0.0
        return fixed, total - fixed

    def _fit(self, name: str) -> PointwiseFit | None:
        return self._fits.get(name) or self._fits.get(DEFAULT)

    def _between(self, timings: Sequence[tuple[int, float]], total: int) -> Estimate:
        """Interpolate linearly, as fixed + bytes/bandwidth is linear; above all rows ∝ bytes."""
        sizes = [size for size, _ in timings]
        source, error = widened("fitted", self._table_error, reach(total, sizes[0], sizes[-1]))
        if source == "fitted":
            source = "interpolated"
        if total <= sizes[0]:
            return Estimate(timings[0][1], "interpolated", self._table_error)
        if total >= sizes[-1]:
            return Estimate(timings[-1][1] * total / sizes[-1], source, error)
        right = bisect_left(sizes, total)
        (low, left_us), (high, right_us) = timings[right - 1], timings[right]
        weight = (total - low) / (high - low) if high > low else 1.0
        return Estimate(left_us + weight * (right_us - left_us), source, error)
