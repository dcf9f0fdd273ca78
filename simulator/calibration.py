"""Calibration: factors from a profile's families of look-ups to a machine's, fitted to whole jobs.

A family's durations are multiplied by its factor, and every iteration takes a constant longer. The
error of the fitted factor replaces the errors of the family's look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.draws import Draw, Family
from simulator.errors import ProfileError
from simulator.limits import check_values
from simulator.lookup import require_count, require_number
from simulator.provenance import Provenance

PARTS: Final[dict[str, tuple[Family, ...]]] = {
    "gemm": ("gemm_forward", "gemm_dgrad", "gemm_wgrad"),
    "attention": ("attention",),
    "pointwise": ("pointwise",),
    "collective": ("collective", "peer_copy"),
    "collective_between_nodes": ("collective_between_nodes",),
    "launch": ("launch",),
    "power": ("power",),
}
"""Part that has a factor -> the families of errors that the factor scales together."""
MOST_FACTOR: Final = 100.0
"""No machine differs from its profile by more than this factor, or by less than one over it."""
MOST_ERROR: Final = 10.0
MOST_CONSTANT_MS: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class CalibratedPart:
    """The factor of a part's durations, and its relative standard error."""

    part: str
    factor: float
    error: float

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ProfileError(f"calibration has no part {self.part!r}; it has {', '.join(PARTS)}.")
        _require_within(f"factor of {self.part}", self.factor, 1 / MOST_FACTOR, MOST_FACTOR)
        _require_within(f"error of {self.part}", self.error, 0.0, MOST_ERROR)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Factors of the parts, each at most once, and the constant of an iteration.

    ``runs``: number of measured iterations. ``base``: the profile that the factors apply to.
    """

    parts: tuple[CalibratedPart, ...]
    constant_ms: float
    runs: int
    base: str
    provenance: Provenance

    def __post_init__(self) -> None:
        _require_within("constant_ms", self.constant_ms, 0.0, MOST_CONSTANT_MS)
        require_count("calibration", "runs", self.runs)
        for part in ("base", "provenance"):
            check_values(f"calibration.{part}", part, getattr(self, part))
        names = [one.part for one in self.parts]
        if names != sorted(set(names)):
            raise ProfileError("calibration.parts must be sorted by part, each once.")

    def as_draw(self) -> Draw:
        """Return how the machine differs from the profile."""
        return Draw(
            factors={name: one.factor for one in self.parts for name in PARTS[one.part]},
            errors={name: one.error for one in self.parts for name in PARTS[one.part]},
        )


def _require_within(name: str, value: float, low: float, high: float) -> None:
    """Raise ProfileError unless ``value`` is from ``low`` to ``high``: no time then overflows."""
    require_number("calibration", name, value)
    if not low <= value <= high:
        raise ProfileError(
            f"calibration: {name} must be from {low:g} to {high:g}, got {value!r}; calibrate again."
        )
