"""Shared parts of Gaussian processes over shapes: the kernel, and the calibration of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from simulator.lookup.gemm_law import Floats

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
