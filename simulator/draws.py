"""How a machine may differ from a profile with errors (draws), or does (its calibration).

Look-ups of a family share their error: a GEMM table that is too slow is too slow for all forward
GEMMs. A draw gives each family a number z of standard errors, so that each look-up of the family
takes (1 + its own error)^z times as long. All plans in a comparison are played on the same draw,
since they would run on the same machine. ``signature_errors`` holds the errors that signatures do
not share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, get_args

from simulator.errors import ProfileError
from simulator.lookup import Provenance, check_values, require_count, require_number
from simulator.ops import Collective, Fused, Gemm, Signature

if TYPE_CHECKING:
    from simulator.contention import ContentionFit, Part
    from simulator.lookup import Estimate
    from simulator.power import PowerSection


Family = Literal[
    "gemm_forward", "gemm_dgrad", "gemm_wgrad", "attention", "pointwise", "collective",
    "peer_copy", "collective_between_nodes", "tile_fused", "contention",
    "contention_of_collectives", "contention_of_links", "launch", "power", "hosts",
]  # fmt: skip
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
OWN_SHARE: Final = 0.3
"""Part of a look-up's error that is its signature's own (assumed; the families have the rest)."""

PLAN_ERROR: Final = 0.009
"""Standard error of the logarithm of a plan's time that no look-up explains: the simulator's own.
Half of the 112 speed-ups in results/fidelity.json, each of two plans on real ranks, are within
0.86 % of what was predicted. On GPUs it is assumed to be the same: no plans have run there."""


@dataclass(frozen=True)
class Draw:
    """How each family is off: by ``z`` standard errors, and by ``factors``.

    ``errors``: what is unsure of a factor, where it takes the place of the look-ups' errors.
    """

    z: Mapping[Family, float] = field(default_factory=lambda: MappingProxyType({}))
    factors: Mapping[Family, float] = field(default_factory=lambda: MappingProxyType({}))
    errors: Mapping[Family, float] = field(default_factory=lambda: MappingProxyType({}))

    def factor(self, family: Family, error: float) -> float:
        """Return by what a duration of the family is multiplied."""
        z, known = self.z.get(family, 0.0), self.factors.get(family, 1.0)
        return known * (1 + error) ** z if z else known

    def estimate(self, signature: Signature, nominal: Estimate) -> Estimate:
        """Return a look-up on this machine."""
        family = family_of(signature)
        error = nominal.error
        if family in self.errors:
            error = math.hypot(self.errors[family], OWN_SHARE * error)
        off = self.factor(family, nominal.error)
        return nominal._replace(duration_us=nominal.duration_us * off, error=error)

    def contention(self, fit: ContentionFit) -> ContentionFit:
        """Return the law of contention on this machine."""
        parts: tuple[tuple[Family, Part], ...] = (
            ("contention", "compute"), ("contention_of_collectives", "collectives"),
            ("contention_of_links", "links"),
        )  # fmt: skip
        for family, part in parts:
            if self.z.get(family):
                fit = fit.off(part, times=self.z[family])
        return fit

    def power(self, law: PowerSection) -> PowerSection:
        """Return the law of power on this machine."""
        if "power" not in {**self.z, **self.factors}:
            return law
        families = tuple(
            replace(
                one,
                draw_w=one.draw_w * self.factor("power", math.hypot(one.error, law.own_error)),
                error=self.errors.get("power", one.error),
            )
            for one in law.families
        )
        spread = 0.0 if "power" in self.errors else law.clock_spread  # jobs had their slowest GPU
        return replace(law, families=families, clock_spread=spread)


NOMINAL: Final = Draw()


def family_of(signature: Signature) -> Family:
    """Return the family of a signature's error."""
    if isinstance(signature, Collective):
        if signature.op == "peer_copy":
            return "peer_copy"
        return "collective_between_nodes" if signature.nodes > 1 else "collective"
    if isinstance(signature, Gemm):
        families: dict[str, Family] = {
            "forward": "gemm_forward", "dgrad": "gemm_dgrad", "wgrad": "gemm_wgrad",
        }  # fmt: skip
        return families[signature.layout]
    if isinstance(signature, Fused):
        return family_of(signature.gemm)
    return "attention" if signature.kind == "attention" else "pointwise"


def families_of(signature: Signature) -> tuple[Family, ...]:
    """Return the families whose errors move a signature: of a fused kernel those of its parts and
    that of the law which puts them together."""
    if not isinstance(signature, Fused):
        return (family_of(signature),)
    gathers = signature.collective.op == "all_gather"  # by copy engines, see ``CostModel``
    moving = "peer_copy" if gathers else family_of(signature.collective)
    return family_of(signature.gemm), moving, "tile_fused"


# Calibration --------------------------------------------------------------------------------------
# Factors from a profile's families of look-ups to a machine's, fitted to whole jobs.
#
# A family's durations are multiplied by its factor, and every iteration takes a constant longer.
# The error of the fitted factor replaces the errors of the family's look-ups.

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
