"""Look-ups: from an op's signature to its duration, one table per kind of op.

A table holds rows (timed signatures) and a fit (a law). The row of the same signature comes first,
then interpolation between rows, then the law. Each answer has its source and expected error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

from simulator.errors import ProfileError
from simulator.lookup import expected
from simulator.lookup.expected import BANDWIDTH

# Estimate -----------------------------------------------------------------------------------------
# A duration, its source and its expected error.

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


# Look-ups -----------------------------------------------------------------------------------------

FitKind = Literal["fitted", "assumed"]
FIT_KINDS: Final = ("fitted", "assumed")
ABSENT_IF_EMPTY: Final[dict[str, Any]] = {"absent_if_empty": True}
"""Metadata of a field that a profile's file omits if it is empty."""
MAX_REACH: Final = 2.0  # a look-up up to this factor outside the measured range is still trusted


def require_number(owner: str, name: str, value: object, *, low: float = 0.0) -> None:
    """Raise ProfileError unless ``value`` is a finite number ≥ ``low``."""
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or float(value) < low:  # type: ignore[arg-type]
        raise ProfileError(f"{owner}: {name} must be a finite number ≥ {low:g}, got {value!r}.")


def require_positive(owner: str, name: str, value: object) -> None:
    """Raise ProfileError unless ``value`` is a finite number > 0."""
    require_number(owner, name, value)
    if value == 0:
        raise ProfileError(f"{owner}: {name} must be > 0, got 0.")


def require_count(owner: str, name: str, value: object, *, low: int = 1) -> None:
    """Raise ProfileError unless ``value`` is an int ≥ ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ProfileError(f"{owner}: {name} must be a whole number ≥ {low}, got {value!r}.")


def require_choice(owner: str, name: str, value: str, known: Sequence[str]) -> None:
    """Raise ProfileError unless ``value`` is one of ``known``."""
    if value not in known:
        raise ProfileError(f"{owner}: {name} must be one of {', '.join(known)}, got {value!r}.")


def require_sorted(owner: str, keys: Sequence[Any]) -> None:
    """Raise ProfileError naming the first row whose key is not above the row before it."""
    for index in range(1, len(keys)):
        if not keys[index - 1] < keys[index]:
            why = "repeats" if keys[index - 1] == keys[index] else "must come before"
            raise ProfileError(
                f"{owner}.rows[{index}] {keys[index]} {why} rows[{index - 1}] {keys[index - 1]}; "
                f"rows are sorted by signature, each once."
            )


class Timing(Protocol):
    """Protocol of every row: median and spread of ``samples`` runs, in µs."""

    @property
    def median_us(self) -> float:
        """Median time, in µs."""

    @property
    def spread_us(self) -> float:
        """Spread of the times, in µs; 0 if unknown."""

    @property
    def samples(self) -> int:
        """Number of runs."""


def row_error(row: Timing) -> float:
    """Return the expected relative error of a timed row; 2 % if its spread is unknown."""
    if row.samples <= 1 or row.spread_us <= 0:
        return expected.SINGLE_RUN.error
    return max(expected.LEAST.error, row.spread_us / row.median_us)


def reach(value: float, low: float, high: float) -> float:
    """Return the factor by which ``value`` lies outside [low, high]; 1 inside."""
    if value < low:
        return low / max(value, 1e-9)
    return value / high if value > high else 1.0


def widened(kind: FitKind, error: float, how_far: float) -> tuple[Source, float]:
    """Return source and error of a law used ``how_far`` outside its range (see ``reach``)."""
    if how_far <= MAX_REACH:
        return kind, error
    wide = min(1.0, max(expected.FAR.error, error) * (1.0 + 0.5 * math.log2(how_far)))
    return ("assumed" if kind == "assumed" else "extrapolated"), wide


# Roof ---------------------------------------------------------------------------------------------
# What no op of a machine can beat, whatever a law says far from its timings.

ROOF_BANDWIDTH: Final = 1 - BANDWIDTH.error
"""Share of the data sheet's memory bandwidth that no kernel exceeds."""
L2_MULTIPLE: Final = 4
"""A working set above this many L2 caches comes from memory."""


@dataclass(frozen=True)
class Roof:
    """Peaks of a data sheet: FLOP/us by dtype, bytes/us of the memory, bytes of the L2 cache."""

    flops_per_us: Mapping[str, float]
    bytes_per_us: float
    l2_bytes: int

    def floor_us(self, dtype: str, flops: float, moved_bytes: float) -> float:
        """Return the least time (us) of an op with these FLOPs that must move these bytes."""
        floor = flops / self.flops_per_us[dtype] if dtype in self.flops_per_us else 0.0
        if moved_bytes > L2_MULTIPLE * self.l2_bytes:
            floor = max(floor, moved_bytes / (ROOF_BANDWIDTH * self.bytes_per_us))
        return floor

    def bounded(self, estimate: Estimate, dtype: str, flops: float, moved_bytes: float) -> Estimate:
        """Return ``estimate``, at least the op's floor; what was lifted is no measurement."""
        floor = self.floor_us(dtype, flops, moved_bytes)
        if estimate.duration_us >= floor:
            return estimate
        lifted = floor / estimate.duration_us - 1
        source = "fitted" if estimate.source == "measured" else estimate.source
        return Estimate(floor, source, max(estimate.error, min(1.0, lifted)))


NO_RATIOS: Final[Mapping[str, float]] = MappingProxyType({})
"""Of a machine that multiplies only what was timed."""
NO_ROOF: Final = Roof(flops_per_us={}, bytes_per_us=math.inf, l2_bytes=0)
"""Bounds nothing: for machines without a data sheet."""


# Provenance ---------------------------------------------------------------------------------------
# The source of a section's numbers, and how well it is known.

ProvenanceKind = Literal["measured", "imported", "fitted", "assumed"]
PROVENANCE_KINDS: Final = ("measured", "imported", "fitted", "assumed")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Source of a section's numbers; ``error`` is their relative leave-out error.

    ``clock``: at what clock the GPU ran while they were timed, as far as it is known.
    """

    kind: ProvenanceKind
    source: str
    error: float | None = None
    clock: str = field(default="", metadata=ABSENT_IF_EMPTY)
    note: str = ""

    def __post_init__(self) -> None:
        require_choice("provenance", "kind", self.kind, PROVENANCE_KINDS)
        if self.error is not None:
            require_number("provenance", "error", self.error)


# Limits of a profile's numbers and texts ----------------------------------------------------------
# Far beyond any machine, but no time that follows overflows, and no text that is printed moves a
# terminal's cursor or reorders a line.

# Lowest and highest by the ending of a number's name.
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "error": (0.0, 10.0),
    "_us": (0.0, 1e9),
    "row_ns": (0.0, 1e9),
    "us_per_mib": (0.0, 1e6),
    "_gb_s": (1e-3, 1e9),
    "tflops": (1e-3, 1e12),
    "factor": (1.0, 1e3),
    "backward_ratio": (1e-3, 1e3),
    "_count": (1.0, 1e6),
}
_ANY: Final = (0.0, 1e15)
LONGEST_TEXT: Final = 1_000
LONGEST_NOTE: Final = 64_000
"""Notes grow: each import repeats the earlier ones."""


@cache
def _limits(name: str) -> tuple[float, float]:
    return next((limits for ending, limits in _LIMITS.items() if name.endswith(ending)), _ANY)


def check_values(place: str, name: str, value: Any) -> None:
    """Raise ProfileError for the first number within ``value`` that no machine can have, and for
    the first text that is too long, or holds control, format or bidirectional characters.

    The limits of a list or mapping apply to each entry. A GEMM law's params have limits of their
    own (see ``simulator.lookup.gemm_law``).
    """
    if name == "params" or value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(place, name, value)
    elif isinstance(value, int | float):
        low, high = _limits(name)
        if not low <= value <= high:
            raise ProfileError(f"{place} must be from {low:g} to {high:g}, got {value!r}.")
    elif hasattr(value, "__dataclass_fields__"):
        for item in fields(value):
            check_values(f"{place}.{item.name}", item.name, getattr(value, item.name))
    elif hasattr(value, "_fields"):
        for part, entry in zip(value._fields, value, strict=True):
            check_values(f"{place}.{part}", part, entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check_text(f"a key of {place}", name, key)
            check_values(f"{place}.{key}", name, entry)
    else:
        for index, entry in enumerate(value):
            check_values(f"{place}[{index}]", name, entry)


def _check_text(place: str, name: str, text: str) -> None:
    longest = LONGEST_NOTE if name == "note" else LONGEST_TEXT
    if len(text) > longest:
        raise ProfileError(
            f"{place} may have {longest:,} characters, got {len(text):,}; shorten it."
        )
    if not text.isprintable():
        bad = next(character for character in text if not character.isprintable())
        raise ProfileError(
            f"{place} holds the character U+{ord(bad):04X}, which is not printed as itself; leave "
            "it out."
        )
