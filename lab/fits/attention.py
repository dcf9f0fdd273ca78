"""Attention: the law of ``simulator.lookup.attention``, fitted to timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lab.fits.common import ASSUMED_ERROR, Floats, robust, rounded, withheld
from simulator.errors import InputError
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.profile import Machine

_START: Final = (14.0, 0.56, 630.0, 3000.0, 1.2)
"""Fixed µs, ns a row, TFLOP/s, TFLOP/s of a tile, blend."""
_BOUNDS: Final = ((0.0, 0.0, 1.0, 1.0, 1.0), (1e3, 1e3, 1e4, 1e5, 20.0))
_LINEAR_ABOVE: Final = 0.05
_FOLDS: Final = 5


def fit_attention(
    forward: Sequence[AttentionRow],
    pairs: Sequence[AttentionRow],
    *,
    sm_count: int,
    withheld_by: Callable[[AttentionRow], Any] = lambda row: row.seq,
) -> AttentionFit:
    """Fit the law to forward timings of one head size, its backward ratio to pairs of timings.

    Raise InputError where the rows mix head sizes, or where a backward row of ``pairs`` has no
    forward row.
    """
    law = fit_forward(forward, sm_count=sm_count, withheld_by=withheld_by)
    ratio, ratio_error = _backward_ratio(pairs)
    return replace(law, backward_ratio=rounded(ratio, 3), backward_error=rounded(ratio_error, 2))


def fit_forward(
    forward: Sequence[AttentionRow],
    *,
    sm_count: int,
    withheld_by: Callable[[AttentionRow], Any] = lambda row: row.seq,
) -> AttentionFit:
    """Fit the law to forward timings of one head size; its backward ratio is 1.

    ``error`` is the mean error of shapes withheld in five folds of ``withheld_by``, by default the
    sequence length.
    """
    head_dims = {(row.head_dim, row.v_head_dim) for row in forward}
    if len(head_dims) != 1 or len(forward) < 10:
        raise InputError(f"The law needs ≥ 10 rows of one head size, got {sorted(head_dims)}.")

    def off(others: list[AttentionRow], mine: list[AttentionRow]) -> list[float]:
        law = _law(others, forward, sm_count)
        return [abs(sum(law.shares_us(r.signature)) / r.median_us - 1) for r in mine]

    error = float(np.mean(withheld(forward, withheld_by, off, folds=_FOLDS)))
    return replace(_law(forward, forward, sm_count), error=rounded(error, 2))


def assumed_on(fit: AttentionFit, of: Machine, machine: Machine) -> AttentionFit:
    """Return the law of another GPU, rates by peak FLOP/s and the cost of a row by memory
    bandwidth."""
    flops = machine.peak_tflops["bf16"] / of.peak_tflops["bf16"]
    memory = machine.memory_bandwidth_gb_s / of.memory_bandwidth_gb_s
    return replace(
        fit, kind="assumed", sm_count=machine.sm_count, tflops=rounded(fit.tflops * flops),
        tile_tflops=rounded(fit.tile_tflops * flops), row_ns=rounded(fit.row_ns / memory),
        error=ASSUMED_ERROR,
    )  # fmt: skip


def _law(
    fitted: Sequence[AttentionRow], rows: Sequence[AttentionRow], sm_count: int
) -> AttentionFit:
    """Return the forward law of the ``fitted`` rows, for the range of all ``rows``."""
    numbers = (rounded(float(one)) for one in _solve(fitted, sm_count))
    fixed, row_ns, tflops, tile_tflops, blend = numbers
    return AttentionFit(
        sm_count=sm_count, head_dim=rows[0].head_dim, v_head_dim=rows[0].v_head_dim,
        fixed_us=fixed, row_ns=row_ns, tflops=tflops,
        tile_tflops=tile_tflops, blend=blend, backward_ratio=1.0,
        min_seq=min(row.seq for row in rows), max_seq=max(row.seq for row in rows),
        error=0.0, backward_error=0.0,
    )  # fmt: skip


def _solve(rows: Sequence[AttentionRow], sm_count: int) -> Floats:
    """Solve robust least squares of the log error, vectorised over the rows."""
    batch, heads, seq, times = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("batch", "heads", "seq", "median_us")
    )
    dims = rows[0].head_dim + (rows[0].v_head_dim or rows[0].head_dim)
    flops = np.array([row.signature.flops for row in rows], dtype=np.float64)
    tile_flops = 2 * 128 * seq * dims * sm_count

    def off(p: Floats) -> Floats:
        work = batch * heads * seq * p[1] / 1e3 + flops / (p[2] * 1e6)
        tile = tile_flops / (p[3] * 1e6)
        return np.asarray(np.log((p[0] + (work ** p[4] + tile ** p[4]) ** (1 / p[4])) / times))

    return robust(off, _START, _BOUNDS, linear_above=_LINEAR_ABOVE, scaled=True)


def _backward_ratio(pairs: Sequence[AttentionRow]) -> tuple[float, float]:
    """Return median backward/forward over shapes timed both ways, and its relative spread."""
    forward = {r.signature: r.median_us for r in pairs if r.direction == "forward"}
    ratios = []
    for row in pairs:
        if row.direction == "backward":
            other = row.signature._replace(direction="forward")
            if other not in forward:
                raise InputError(f"No forward timing for {row.signature}; add one.")
            ratios.append(row.median_us / forward[other])
    if not ratios:
        raise InputError("The backward ratio needs shapes timed forward and backward.")
    middle = float(np.median(ratios))
    return middle, float(np.max(np.abs(np.array(ratios) / middle - 1)))
