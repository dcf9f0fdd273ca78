"""Rounding and errors for all fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rounded(value: float, digits: int = 4) -> float:
    """Return ``value`` with the digits that noisy timings justify, equal on every machine."""
    return float(f"{value:.{digits}g}")


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean of |predicted/measured − 1|."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))
