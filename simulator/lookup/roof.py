"""Roof: what no op of a machine can beat, whatever a law says far from its timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simulator.estimate import Estimate

ROOF_BANDWIDTH: Final = 0.95
"""Share of the data sheet's memory bandwidth that no kernel exceeds: refresh and turnarounds take
the rest. Assumed. A timed row above it (the best one here: 0.97) was helped by what an op before
it had left in the L2."""
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
        """Return ``estimate``, at least the op's floor."""
        floor = self.floor_us(dtype, flops, moved_bytes)
        return estimate if estimate.duration_us >= floor else estimate._replace(duration_us=floor)
