"""Roof: what no op of a machine can beat, whatever a law says far from its timings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from simulator.estimate import Estimate
from simulator.lookup.expected import BANDWIDTH

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
