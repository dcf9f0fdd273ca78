"""How far to trust a Gaussian process: its own deviations, scaled to the errors it really makes."""

from __future__ import annotations

from typing import Final

import numpy as np

from simulator.lookup.gemm_law import Floats

# Leave-out error to believe before there is anything to leave out, and its weight in rows.
_PRIOR_ERROR: Final = 0.08
_PRIOR_ROWS: Final = 4


def calibrated(log_errors: Floats, deviations: Floats) -> tuple[float, float]:
    """Return (mean leave-out error, relative error to expect per deviation).

    ``log_errors``: log(measured / looked up) of each row (or curve) when it is left out;
    ``deviations``: what the process itself expected of it. A single one shows nothing.
    """
    count = len(deviations)
    left_out = float(np.abs(np.expm1(log_errors)).mean())
    expected = (count * left_out + _PRIOR_ROWS * _PRIOR_ERROR) / (count + _PRIOR_ROWS)
    return left_out if count > 1 else expected, expected / float(np.mean(deviations))
