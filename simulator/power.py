"""Power: the law of a GPU's power draw and of how its clock slows ops, a section of a profile.

In a long run a GPU is limited by its power cap, not by its boost clock. Busy with family g at clock
f, it draws
    idle + draw_g · (f / boost)^exponent,
and an op whose timing was taken at a clock f₀ > f takes (1 − e_g) + e_g · f₀ / f times as long,
with the elasticity e_g of its family: 1 where the clock decides, 0 where memory or links do. At
f ≥ f₀ it takes as long as when it was timed: timings are bursts, so nothing shows that it can be
faster. Our H200's GEMMs keep one rate at all durations although it was cool and far below its cap,
as if a second, fast limit held them.

The control loop averages over tens of milliseconds, so an iteration has one clock: the largest at
which its mean power stays under the cap (``simulator.clock``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simulator.errors import ProfileError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    PROVENANCE_KINDS,
    Provenance,
    ProvenanceKind,
    check_values,
    require_choice,
    require_count,
    require_number,
    require_positive,
)

FAMILIES: Final = ("gemm", "attention", "pointwise", "collective")
NUMBERS: Final = ("boost_mhz", "cap_w", "idle_w", "exponent", "clock_spread")
"""Numbers of the law that have a kind of their own."""
STEP_MHZ: Final = 15
"""Step of NVIDIA's SM clocks (``nvidia-smi --query-supported-clocks=gr``)."""
LEAST_SHARE: Final = 0.3
"""Lowest clock that is looked at, as a share of boost."""


@dataclass(frozen=True, kw_only=True)
class FamilyPower:
    """One family of ops: ``draw_w`` above idle at boost, and the elasticity of its times.

    ``error``: expected relative error of the draw. ``kind`` is of both numbers.
    """

    family: str
    draw_w: float
    elasticity: float
    kind: ProvenanceKind
    error: float

    def __post_init__(self) -> None:
        owner = f"power {self.family}"
        require_choice("power", "family", self.family, FAMILIES)
        require_choice(owner, "kind", self.kind, PROVENANCE_KINDS)
        require_number(owner, "draw_w", self.draw_w)
        require_number(owner, "elasticity", self.elasticity)
        require_number(owner, "error", self.error)
        if self.elasticity > 1:
            raise ProfileError(f"{owner}: elasticity must be ≤ 1, got {self.elasticity!r}.")


class RowClock(NamedTuple):
    """Timings of ``family`` that last ``from_us`` or longer were taken at ``clock_mhz``."""

    family: str
    from_us: float
    clock_mhz: float


@dataclass(frozen=True, kw_only=True)
class PowerSection:
    """The law of this module's docstring.

    ``row_clocks``: the clock of the profile's timings, by family and duration, since a long op that
    is timed over and over already lowers it; between two durations above 0 it changes with the
    logarithm.
    ``gemm_mhz``: the same of GEMMs, by what multiplies, where that is another one: FP8 at the power
    limit has another clock than BF16. ``gemm_draw``: what they draw above idle, times BF16's.
    ``clock_spread``: by how much the slowest GPU of a node runs below the mean, relative.
    ``kinds``: how each of NUMBERS is known.
    """

    boost_mhz: int
    cap_w: float
    idle_w: float
    exponent: float
    clock_spread: float
    families: tuple[FamilyPower, ...]
    row_clocks: tuple[RowClock, ...]
    kinds: dict[str, ProvenanceKind]
    gemm_mhz: dict[str, float] = field(default_factory=dict, metadata=ABSENT_IF_EMPTY)
    gemm_draw: dict[str, float] = field(default_factory=dict, metadata=ABSENT_IF_EMPTY)
    provenance: Provenance

    def __post_init__(self) -> None:
        require_count("power", "boost_mhz", self.boost_mhz)
        for name in ("gemm_mhz", "gemm_draw"):
            for product, number in getattr(self, name).items():
                require_positive("power", f"{name}[{product}]", number)
        for name in ("cap_w", "idle_w", "exponent"):
            require_positive("power", name, getattr(self, name))
        require_number("power", "clock_spread", self.clock_spread)
        if self.clock_spread >= 1:
            raise ProfileError(f"power: clock_spread must be < 1, got {self.clock_spread!r}.")
        named = [one.family for one in self.families]
        if tuple(named) != FAMILIES:
            raise ProfileError(f"power.families must be {', '.join(FAMILIES)}, got {named}.")
        if set(self.kinds) != set(NUMBERS):
            raise ProfileError(f"power.kinds must name {', '.join(NUMBERS)}, got {self.kinds}.")
        for name, kind in self.kinds.items():
            require_choice("power", f"kind of {name}", kind, PROVENANCE_KINDS)
        if self.cap_w <= self.idle_w:
            raise ProfileError(
                f"power: cap_w must be above idle_w, got {self.cap_w:g} and {self.idle_w:g}."
            )
        if self.exponent < 1:
            raise ProfileError(f"power: exponent must be ≥ 1, got {self.exponent:g}.")
        self._check_row_clocks()
        check_values("power", "power", self)

    def _check_row_clocks(self) -> None:
        places = [(row.family, row.from_us) for row in self.row_clocks]
        if places != sorted(set(places)):
            raise ProfileError("power.row_clocks must be sorted by family and duration, each once.")
        for row in self.row_clocks:
            require_choice("power", "row clock's family", row.family, FAMILIES)
            require_number("power", "from_us", row.from_us)
            require_positive("power", "clock_mhz", row.clock_mhz)
            if row.clock_mhz > self.boost_mhz:
                raise ProfileError(
                    f"power: clock_mhz {row.clock_mhz:g} of {row.family} timings is above "
                    f"boost_mhz, {self.boost_mhz}."
                )

    def family(self, name: str) -> FamilyPower:
        """Return the numbers of one of FAMILIES."""
        return self.families[FAMILIES.index(name)]

    @property
    def own_error(self) -> float:
        """Relative error of what a GPU draws that moves its clock by ``clock_spread``: the slowest
        one of a group sets the pace."""
        return math.expm1(self.exponent * math.log1p(self.clock_spread))

    def boost_w(self, family: str, product: str = "") -> float:
        """Return the watts above idle of an op of ``family`` at boost. ``product``: in what a GEMM
        multiplies."""
        return self.family(family).draw_w * self.gemm_draw.get(product, 1.0)

    def draw_w(self, family: str, timed_mhz: float, clock_mhz: float, product: str = "") -> float:
        """Return the watts above idle while an op of ``family`` that was timed at ``timed_mhz``
        runs at ``clock_mhz``."""
        kept_mhz = min(clock_mhz, timed_mhz)
        slower = math.pow(kept_mhz / self.boost_mhz, self.exponent)
        return self.boost_w(family, product) * slower

    def stretch(self, family: str, timed_mhz: float, clock_mhz: int) -> float:
        """Return the factor from a timing at ``timed_mhz`` to the duration at ``clock_mhz``."""
        slower = max(1.0, timed_mhz / clock_mhz)
        return 1.0 + self.family(family).elasticity * (slower - 1.0)

    def timed_mhz(self, family: str, timed_us: float, product: str = "") -> float:
        """Return the clock (MHz) at which ``timed_us`` was timed; boost if the family has no rows.
        ``product``: in what a GEMM multiplies."""
        if product in self.gemm_mhz:
            return min(self.gemm_mhz[product], self.boost_mhz)
        rows = [row for row in self.row_clocks if row.family == family]
        return _clock_mhz(rows, timed_us) if rows else float(self.boost_mhz)

    def clocks(self, most_mhz: int = 0) -> range:
        """Return the clocks that an iteration may have, descending from ``most_mhz`` (0: boost)."""
        highest = min(most_mhz, self.boost_mhz) if most_mhz else self.boost_mhz
        return range(highest, max(1, round(LEAST_SHARE * self.boost_mhz)) - 1, -STEP_MHZ)


def _clock_mhz(rows: Sequence[RowClock], timed_us: float) -> float:
    """Return the clock of a timing: the rows' in steps, and by the logarithm between two rows."""
    later = next((i for i, row in enumerate(rows) if row.from_us > timed_us), len(rows))
    if later == 0 or later == len(rows):
        return rows[min(later, len(rows) - 1)].clock_mhz
    low, high = rows[later - 1], rows[later]
    if not low.from_us:
        return low.clock_mhz
    share = math.log(timed_us / low.from_us) / math.log(high.from_us / low.from_us)
    return low.clock_mhz + share * (high.clock_mhz - low.clock_mhz)
