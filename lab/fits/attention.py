"""Fit the attention law (see simulator.lookup.attention) to timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lab.fits.common import Floats, rounded
from simulator.errors import InputError
from simulator.lookup.attention import AttentionFit, AttentionRow

_START = (14.0, 0.56, 630.0, 3000.0, 1.2)  # fixed us, row ns, TFLOP/s, tile TFLOP/s, blend
_LOW = (0.0, 0.0, 1.0, 1.0, 1.0)
_HIGH = (1e3, 1e3, 1e4, 1e5, 20.0)


def fit_attention(
    forward: Sequence[AttentionRow],
    pairs: Sequence[AttentionRow],
    *,
    sm_count: int,
    withheld_by: Callable[[AttentionRow], Any] = lambda row: row.seq,
) -> AttentionFit:
    """Fit the law to forward timings of one head size, its backward ratio to pairs of timings.

    ``error`` is the mean error of shapes withheld in five folds of ``withheld_by``, by default the
    sequence length. Raise InputError where the rows mix head sizes, or where a backward row of
    ``pairs`` has no forward row.
    """
    head_dims = {row.head_dim for row in forward}
    if len(head_dims) != 1 or len(forward) < 10:
        raise InputError(f"The law needs ≥ 10 rows of one head size, got {sorted(head_dims)}.")
    parameters = _solve(forward, sm_count)
    ratio, ratio_error = _backward_ratio(pairs)
    return _law(
        parameters, forward, sm_count,
        error=_withheld_error(forward, sm_count, withheld_by), ratio=ratio, ratio_error=ratio_error,
    )  # fmt: skip


def _law(
    parameters: Floats,
    rows: Sequence[AttentionRow],
    sm_count: int,
    *,
    error: float = 0.0,
    ratio: float = 1.0,
    ratio_error: float = 0.0,
) -> AttentionFit:
    fixed, row_ns, tflops, tile_tflops, blend = (rounded(float(p)) for p in parameters)
    return AttentionFit(
        sm_count=sm_count,
        head_dim=rows[0].head_dim,
        fixed_us=fixed,
        row_ns=row_ns,
        tflops=tflops,
        tile_tflops=tile_tflops,
        blend=blend,
        backward_ratio=rounded(ratio, 3),
        min_seq=min(row.seq for row in rows),
        max_seq=max(row.seq for row in rows),
        error=rounded(error, 2),
        backward_error=rounded(ratio_error, 2),
    )


def _solve(rows: Sequence[AttentionRow], sm_count: int) -> Floats:
    """Solve robust least squares of the log error, vectorised over the rows."""
    batch, heads, seq, dim, times = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("batch", "heads", "seq", "head_dim", "median_us")
    )
    flops = np.array([row.signature.flops for row in rows], dtype=np.float64)
    tile_flops = 4 * 128 * seq * dim * sm_count

    def residuals(p: Floats) -> Floats:
        work = batch * heads * seq * p[1] / 1e3 + flops / (p[2] * 1e6)
        tile = tile_flops / (p[3] * 1e6)
        return np.asarray(np.log((p[0] + (work ** p[4] + tile ** p[4]) ** (1 / p[4])) / times))

    found = least_squares(
        residuals, _START, bounds=(_LOW, _HIGH), x_scale=_START, jac="3-point",
        loss="soft_l1", f_scale=0.05, ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=500,
    )  # fmt: skip
    return np.asarray(found.x, dtype=np.float64)


def _withheld_error(
    rows: Sequence[AttentionRow], sm_count: int, by: Callable[[AttentionRow], Any]
) -> float:
    """Return the mean error over five folds of the rows' keys ``by``."""
    keys = sorted({by(row) for row in rows})
    errors = []
    for fold in range(5):
        out = set(keys[fold::5])
        law = _law(_solve([r for r in rows if by(r) not in out], sm_count), rows, sm_count)
        errors += [
            abs(sum(law.shares_us(r.signature)) / r.median_us - 1) for r in rows if by(r) in out
        ]
    return float(np.mean(errors))


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
