"""Attention core: time of a fused kernel by heads, sequence and direction.

Law, forward (fitted): fixed + ‖work, longest tile‖ₚ. Work is FLOP/rate plus a cost per query row
(prologue, softmax and epilogue, which do not grow with the keys). The longest tile is the 128 query
rows that see all keys, alone on one SM. Backward takes the forward time times a ratio. Queries
after earlier keys, which nobody timed, take the share of the whole sequence's time that the law
gives them: so slices of a sequence never take less than it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    FIT_KINDS,
    NO_RATIOS,
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
from simulator.ops import Attention, Direction

TILE_ROWS: Final = 128
MAX_BLEND: Final = 25.0  # an exponent: above it, powers of long times overflow
DIRECTIONS: Final = ("forward", "backward")
HALF: Final = ("bf16", "fp16")
DETERMINISTIC: Final = 3.804 / 2.391
"""Backward with a fixed order of sums over backward without: FlashAttention-3, causal, 16 heads of
128, 8,192 tokens, before its authors found a better schedule (Dao-AILab/flash-attention #1893)."""


@dataclass(frozen=True, kw_only=True)
class AttentionRow:
    """One timing of one signature."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: bool = True
    direction: Direction = "forward"
    dtype: str = "bf16"
    kv_seq: int = 0
    v_head_dim: int = field(default=0, metadata=ABSENT_IF_EMPTY)
    median_us: float
    spread_us: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        owner = f"attention row {self.key}"
        for name in ("batch", "heads", "kv_heads", "seq", "head_dim", "samples"):
            require_count(owner, name, getattr(self, name))
        if self.kv_seq and not (type(self.kv_seq) is int and self.kv_seq > self.seq):
            raise ProfileError(
                f"{owner}: kv_seq must be 0 (as many keys as queries) or more than seq = "
                f"{self.seq}, got {self.kv_seq!r}."
            )
        require_count(owner, "v_head_dim", self.v_head_dim, low=0)
        require_choice(owner, "direction", self.direction, DIRECTIONS)
        require_positive(owner, "median_us", self.median_us)
        require_number(owner, "spread_us", self.spread_us)

    @property
    def signature(self) -> Attention:
        """The op that was timed."""
        return Attention(
            self.batch, self.heads, self.kv_heads, self.seq, self.head_dim,
            self.causal, self.direction, self.dtype, kv_seq=self.kv_seq,
            v_head_dim=self.v_head_dim,
        )  # fmt: skip

    @property
    def key(self) -> tuple[int | bool | str, ...]:
        """Sort key: the signature."""
        return tuple(self.signature)


@dataclass(frozen=True, kw_only=True)
class AttentionFit:
    """The law of this module's docstring, fitted at one ``head_dim`` (and ``v_head_dim`` of values,
    where that differs).

    ``tflops``: rate of the whole GPU at saturation; ``row_ns``: cost of one query row of one head;
    ``tile_tflops``: rate of the whole GPU if each SM ran like one with a single tile; ``blend``: p
    of the norm. Other head sizes have a row cost ∝ head_dim and, below the fitted one, a rate ×
    √(head_dim/fitted), 0.71 for heads of 64: these are assumed, and so are dtypes other than bf16
    and fp16.
    """

    kind: FitKind = "fitted"
    sm_count: int
    head_dim: int
    fixed_us: float
    row_ns: float
    tflops: float
    tile_tflops: float
    blend: float
    backward_ratio: float
    min_seq: int
    max_seq: int
    error: float
    backward_error: float
    v_head_dim: int = field(default=0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "attention fit"
        require_count(owner, "v_head_dim", self.v_head_dim, low=0)
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        for name in ("sm_count", "head_dim", "min_seq", "max_seq"):
            require_count(owner, name, getattr(self, name))
        for name in ("tflops", "tile_tflops", "backward_ratio"):
            require_positive(owner, name, getattr(self, name))
        for name in ("fixed_us", "row_ns", "error", "backward_error"):
            require_number(owner, name, getattr(self, name))
        require_number(owner, "blend", self.blend, low=1.0)
        if self.blend > MAX_BLEND:
            raise ProfileError(f"{owner}: blend must be at most {MAX_BLEND:g}, got {self.blend!r}.")

    @property
    def dims(self) -> tuple[int, int]:
        """Elements of a key and of a value of the fitted rows."""
        return self.head_dim, self.v_head_dim or self.head_dim

    def shares_us(self, op: Attention) -> tuple[float, float, float]:
        """Return (fixed, flops, memory) in µs; they sum to the op's duration."""
        both = op.head_dim + (op.v_head_dim or op.head_dim)
        relative = both / sum(self.dims)
        rate = self.tflops * 1e6 * min(1.0, math.sqrt(relative))
        rows_us = op.batch * op.heads * op.seq * self.row_ns * relative / 1e3
        flops_us = op._replace(direction="forward").flops / rate
        tile_flops = 2 * min(TILE_ROWS, op.seq) * op.keys * both
        tile_us = (
            tile_flops * self.sm_count / (self.tile_tflops * 1e6 * min(1.0, math.sqrt(relative)))
        )
        work = rows_us + flops_us
        body = float((work**self.blend + tile_us**self.blend) ** (1 / self.blend))
        memory = body * rows_us / work
        times = self.backward_ratio if op.direction == "backward" else 1.0
        return self.fixed_us * times, (body - memory) * times, memory * times


class AttentionTable:
    """Look-up of attention times; raise MissingSectionError without rows and without a fit."""

    def __init__(
        self,
        rows: Iterable[AttentionRow] = (),
        fit: AttentionFit | None = None,
        *,
        others: Iterable[AttentionFit] = (),
        roof: Roof = NO_ROOF,
        times_bf16: Mapping[str, float] = NO_RATIOS,
    ) -> None:
        self._times_bf16 = times_bf16
        self._rows = {row.signature: row for row in rows}
        self._fit = fit
        self._others = {other.dims: other for other in others}
        self._roof = roof
        if not self._rows and fit is None:
            raise MissingSectionError("The profile's attention section has neither rows nor a fit.")

    def estimate(self, op: Attention) -> Estimate:
        """Return the duration alone on the machine."""
        return self._roof.bounded(self._estimate(op), op.dtype, op.flops, 0)

    def _estimate(self, op: Attention) -> Estimate:
        if op.softcap:  # nobody timed it: it counts as attention without
            plain = self._estimate(op._replace(softcap=False))
            error = max(plain.error, expected.ATTENTION_HEADS.error)
            return Estimate(plain.duration_us, "assumed", error)
        if op.deterministic:
            plain = self._estimate(op._replace(deterministic=False))
            error = max(plain.error, expected.ATTENTION_DETERMINISTIC.error)
            return Estimate(plain.duration_us * DETERMINISTIC, "assumed", error)
        row = self._rows.get(op)
        if row is not None:
            return Estimate(row.median_us, "measured", row_error(row))
        if self._like_bf16(op):
            known = self._estimate(op._replace(dtype="bf16"))
            us = known.duration_us * self._times_bf16[op.dtype]
            return Estimate(us, "assumed", max(known.error, expected.ATTENTION_HEADS.error))
        if op.kv_seq:
            return self._behind_keys(op)
        fit = self._fit_of(op)
        if fit is None:
            return self._from_nearest_row(op)
        error = fit.error + (fit.backward_error if op.direction == "backward" else 0.0)
        source, error = widened(fit.kind, error, reach(op.keys, fit.min_seq, fit.max_seq))
        if _dims(op) != fit.dims or op.dtype not in HALF:
            source, error = "assumed", max(error, expected.ATTENTION_HEADS.error)
        return Estimate(sum(fit.shares_us(op)), source, error)

    def _fit_of(self, op: Attention) -> AttentionFit | None:
        """Return the law of the op's head sizes, else the one of most heads."""
        return self._others.get(_dims(op), self._fit)

    def _like_bf16(self, op: Attention) -> bool:
        """Whether attention in this dtype is taken from bf16's, as nobody timed it."""
        timed = any(row.dtype == op.dtype for row in self._rows.values())
        return op.dtype not in HALF and op.dtype in self._times_bf16 and not timed

    def shares(self, op: Attention) -> tuple[float, float, float]:
        """Return (fixed, flops, memory) in µs; they sum to the estimate's duration."""
        total = self.estimate(op).duration_us
        fit = self._fit_of(op)
        if fit is None:
            return 0.0, total, 0.0
        fixed, flops, memory = fit.shares_us(op)
        scale = total / (fixed + flops + memory)
        return fixed * scale, flops * scale, memory * scale

    def _behind_keys(self, op: Attention) -> Estimate:
        """Return the op's share of the whole sequence's estimate, by the law, or by FLOPs."""
        whole = op._replace(seq=op.kv_seq, kv_seq=0)
        known = self._estimate(whole)
        share = op.flops / whole.flops
        fit = self._fit_of(op)
        if fit is not None:
            share = sum(fit.shares_us(op)) / sum(fit.shares_us(whole))
        error = known.error + op.full_share * expected.ATTENTION_BEHIND.error
        return Estimate(known.duration_us * share, "assumed", error)

    def _from_nearest_row(self, op: Attention) -> Estimate:
        """Return the row of nearest shape, in the same direction if possible, scaled by FLOPs."""
        same = [r for r in self._rows.values() if r.direction == op.direction]
        near = min(same or self._rows.values(), key=lambda row: (_distance(row, op), row.key))
        ratio = op.flops / near.signature.flops
        source, error = widened("fitted", expected.ATTENTION_NEAREST.error, max(ratio, 1 / ratio))
        if not same:
            source = "assumed"
        elif source == "fitted":
            source = "interpolated"
        return Estimate(near.median_us * ratio, source, error)


def _dims(op: Attention) -> tuple[int, int]:
    return op.head_dim, op.v_head_dim or op.head_dim


def _distance(row: AttentionRow, op: Attention) -> float:
    """Return the distance in shape. The sequence counts twice: it decides most about the rate."""
    return (
        2 * abs(math.log(row.signature.keys / op.keys))
        + abs(math.log(row.batch * row.heads / (op.batch * op.heads)))
        + abs(math.log(row.head_dim / op.head_dim))
    )
