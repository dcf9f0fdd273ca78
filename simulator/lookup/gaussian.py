"""What Gaussian processes over shapes share: their kernel, and how far to trust them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from simulator.lookup.gemm_law import Floats

# Leave-out error to believe before there is anything to leave out, and its weight in rows.
_PRIOR_ERROR: Final = 0.08
_PRIOR_ROWS: Final = 4


def kernel(left: Floats, right: Floats, parts: Sequence[tuple[float, Sequence[float]]]) -> Floats:
    """Sum of variance · exp(−Σ |Δ| / length) of all ``parts``, (variance, a length an axis).

    ``left`` and ``right`` are points [points, axes]; a row of the result is one of ``left``.
    """
    axes = range(left.shape[1])
    apart = [np.abs(left[:, None, axis] - right[None, :, axis]) for axis in axes]
    total: Floats = np.zeros((len(left), len(right)))
    for variance, lengths in parts:
        total += variance * np.exp(
            -sum(delta / length for delta, length in zip(apart, lengths, strict=True))
        )
    return total


def calibrated(log_errors: Floats, deviations: Floats) -> tuple[float, float]:
    """Return (mean leave-out error, relative error to expect per deviation): a process's own
    deviations are scaled to the errors that it really makes.

    ``log_errors``: log(measured / looked up) of each row (or curve) when it is left out;
    ``deviations``: what the process itself expected of it. A single one shows nothing.
    """
    count = len(deviations)
    left_out = float(np.abs(np.expm1(log_errors)).mean())
    expected = (count * left_out + _PRIOR_ROWS * _PRIOR_ERROR) / (count + _PRIOR_ROWS)
    return left_out if count > 1 else expected, expected / float(np.mean(deviations))
