"""MemoryQueue: what a collective loses beside an op that keeps the GPU's memory busy.

A collective's CTA keeps a fixed number of bytes in flight, so its rate falls as memory latency
grows. Where an op uses most of the memory's bandwidth, requests queue: the mean wait in a queue
with one server grows as ρ / (1 − ρ), where ρ is the share of time that the server is busy. So
beside an op that moves ``gb_s`` a collective of C CTAs takes
    1 + wait · ρ / (1 − ρ) · (1 + by_cta · C),   ρ = gb_s / attained_gb_s,
times as long. Our H200's records show this (docs/gpu.md): 1.02 to 1.07 beside ``gelu``, which moves
3/4 as many bytes a second as a long ``add``, and 1.2 to 1.45 beside ``add`` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import ProfileError
from simulator.lookup import FIT_KINDS, FitKind, require_choice, require_number, require_positive


@dataclass(frozen=True, kw_only=True)
class MemoryQueue:
    """The law's numbers, how they are known, and the expected relative error of a slowdown.

    ``attained_gb_s``: the most that any long op moved. ``busiest``: the largest ρ at which
    collectives were timed; beyond it the law stays as it is there.
    """

    attained_gb_s: float
    busiest: float
    wait: float
    by_cta: float
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        owner = "contention memory"
        require_positive(owner, "attained_gb_s", self.attained_gb_s)
        for name in ("busiest", "wait", "by_cta", "error"):
            require_number(owner, name, getattr(self, name))
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        if self.busiest >= 1:
            raise ProfileError(f"{owner}: busiest must be below 1, got {self.busiest!r}.")

    def slowdown(self, gb_s: float, ctas: int) -> float:
        """Return how many times as long a collective of ``ctas`` takes beside an op that moves
        ``gb_s``."""
        busy = min(gb_s / self.attained_gb_s, self.busiest)
        return 1 + self.wait * busy / (1 - busy) * (1 + self.by_cta * ctas)

    def most(self, ctas: int) -> float:
        """Return the largest slowdown of a collective of ``ctas``."""
        return self.slowdown(self.attained_gb_s, ctas)
