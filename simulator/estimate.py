"""Estimate: a duration, its source and its expected error."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Source = Literal["measured", "interpolated", "fitted", "extrapolated", "assumed"]
SOURCE_OF: Final[dict[str, Source]] = {
    "measured": "measured", "imported": "measured", "fitted": "fitted", "assumed": "assumed",
}  # fmt: skip
"""Provenance of a section whose numbers are taken as they are -> source of an estimate."""


class Estimate(NamedTuple):
    """Duration of one op that runs alone.

    ``error`` is the expected relative error (0.02 = 2 %), from the section's leave-out check or
    the fit's residuals; it is larger for ``extrapolated`` and ``assumed``.
    """

    duration_us: float
    source: Source
    error: float
