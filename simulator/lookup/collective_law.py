"""Law: a collective's time in two shares."""

from __future__ import annotations

from typing import NamedTuple

from simulator.estimate import Source


class Law(NamedTuple):
    """A collective's time in two shares, its source and expected error."""

    latency_us: float
    transfer_us: float
    source: Source
    error: float

    @property
    def total_us(self) -> float:
        """Latency plus transfer, in µs."""
        return self.latency_us + self.transfer_us

    def scaled(self, factor: float, error: float) -> Law:
        """Return the law times ``factor``, which is assumed."""
        return Law(self.latency_us * factor, self.transfer_us * factor, "assumed", error)
