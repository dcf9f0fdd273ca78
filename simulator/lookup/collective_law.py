"""Law of a collective: its time in two shares, piecewise α–β on one group of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from simulator.errors import ProfileError
from simulator.lookup import (
    FIT_KINDS,
    FitKind,
    Source,
    require_choice,
    require_count,
    require_number,
    require_positive,
)
from simulator.ops import CollectiveKind


class CollectiveLaw(NamedTuple):
    """A collective's time in two shares, its source and expected error."""

    latency_us: float
    transfer_us: float
    source: Source
    error: float

    @property
    def total_us(self) -> float:
        """Latency plus transfer, in µs."""
        return self.latency_us + self.transfer_us

    def scaled(self, factor: float, error: float) -> CollectiveLaw:
        """Return the law times ``factor``, which is assumed."""
        return CollectiveLaw(self.latency_us * factor, self.transfer_us * factor, "assumed", error)


# Piecewise α–β law of one kind of collective on one group of ranks --------------------------------

MIB: Final = 1 << 20
COLLECTIVES: Final = get_args(CollectiveKind)
GroupKey = tuple[str, int, int, int]  # op, nodes, per node, CTAs


@dataclass(frozen=True, kw_only=True)
class CollectiveFit:
    """Piecewise α–β law of one group: latency, and µs per MiB between the knots.

    ``us_per_mib`` has one more entry than ``knots_bytes``; ``ns_per_row``: what a token's row takes
    beside its bytes, of dispatches and combines; ``error`` is the leave-one-out error (0.03 = 3 %);
    ``min_bytes`` … ``max_bytes`` is the range it was fitted on.
    """

    op: CollectiveKind
    nodes: int
    per_node: int
    ctas: int = 0
    latency_us: float
    knots_bytes: tuple[int, ...] = ()
    us_per_mib: tuple[float, ...]
    ns_per_row: float = 0.0
    min_bytes: int
    max_bytes: int
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        owner = f"collectives fit {self.group}"
        require_choice(owner, "op", self.op, COLLECTIVES)
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        for name in ("nodes", "per_node", "min_bytes", "max_bytes"):
            require_count(owner, name, getattr(self, name))
        require_count(owner, "ctas", self.ctas, low=0)
        require_positive(owner, "latency_us", self.latency_us)
        for name in ("error", "ns_per_row"):
            require_number(owner, name, getattr(self, name))
        for slope in self.us_per_mib:
            require_number(owner, "us_per_mib", slope)
        for index, knot in enumerate(self.knots_bytes):
            require_count(owner, f"knots_bytes[{index}]", knot)
        if list(self.knots_bytes) != sorted(set(self.knots_bytes)):
            raise ProfileError(f"{owner}: knots_bytes must rise, got {self.knots_bytes}.")
        if len(self.us_per_mib) != len(self.knots_bytes) + 1:
            raise ProfileError(f"{owner}: us_per_mib needs one entry more than knots_bytes.")
        if self.min_bytes > self.max_bytes:
            raise ProfileError(f"{owner}: min_bytes is above max_bytes.")

    @property
    def group(self) -> GroupKey:
        """Key of the law's group: op, nodes, ranks per node, CTAs."""
        return self.op, self.nodes, self.per_node, self.ctas

    def transfer_us(self, size_bytes: float) -> float:
        """Return the time beyond the latency, in µs."""
        total, low = 0.0, 0.0
        for slope, high in zip(self.us_per_mib, (*self.knots_bytes, math.inf), strict=True):
            if size_bytes <= low:
                break
            total += slope * (min(size_bytes, high) - low) / MIB
            low = high
        return total
