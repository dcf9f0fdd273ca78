"""What the fits share: rounding and errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rounded(value: float, digits: int = 4) -> float:
    """To significant digits: what a fit of noisy timings knows, and the same on every machine."""
    return float(f"{value:.{digits}g}")


def mape(predicted: Floats, measured: Floats) -> float:
    """Mean of |predicted/measured − 1|."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))
