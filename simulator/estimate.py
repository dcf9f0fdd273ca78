"""Estimate: a duration, where it came from, and how sure we are."""

from __future__ import annotations

from typing import Literal, NamedTuple

Source = Literal["measured", "interpolated", "fitted", "extrapolated", "assumed"]


class Estimate(NamedTuple):
    """Duration of one op run alone.

    ``error`` is the expected relative error (0.02 = 2 %), as the section's leave-out check or the
    fit's residuals give it; ``extrapolated`` and ``assumed`` carry a widened one.
    """

    duration_us: float
    source: Source
    error: float
