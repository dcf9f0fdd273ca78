"""The search for a clock: what ops take and draw at each, over arrays (``simulator.clock``).

The sums are taken in the order of ``simulator.power``'s formulas, so that a clock is the same
whoever looks for it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from simulator.kernels import kernel

Array = Any
FAMILIES: Final = 4

# Columns of the rows of a burden, and of signatures.
COUNT, COMPUTES, IN_STEP = range(3)
TIMED_US, TIMED_MHZ, ELASTICITY, DRAW_W, KIND = range(5)
TIMED_COLUMNS: Final = 5
FUSED: Final = -1
"""Kind of kernels whose times follow from those of their parts."""
# Entries of the law.
BOOST_MHZ, EXPONENT, IDLE_W, CAP_W = range(4)


@kernel("f f f i")
def duration_at(timed_us: float, timed_mhz: float, elasticity: float, clock: int) -> int:
    """Return the ns at a clock of an op that takes ``timed_us`` at ``timed_mhz``."""
    stretch = 1.0 + elasticity * (max(1.0, timed_mhz / clock) - 1.0)
    return max(1, int(np.rint(timed_us * stretch * 1000)))


@kernel("f2 i i1", entry=True)
def durations_at(ops: Array, clock: int, found: Array) -> int:
    """Put the ns of each op at a clock into ``found``."""
    for index in range(ops.shape[0]):
        found[index] = duration_at(
            ops[index, TIMED_US], ops[index, TIMED_MHZ], ops[index, ELASTICITY], clock
        )
    return 0


@kernel("i2 f2 f1 i i f1", entry=True)
def load_at(rows: Array, ops: Array, law: Array, clock: int, in_step: int, drawn: Array) -> int:
    """Return the time of the computing ops alone at a clock, in ns; put the energy above idle by
    family, in J, into ``drawn``. ``in_step``: those of the optimizer's step, else of the passes."""
    alone = 0
    for family in range(FAMILIES):
        drawn[family] = 0.0
    for index in range(rows.shape[0]):
        kind = int(ops[index, KIND])
        if rows[index, IN_STEP] != in_step or kind == FUSED:
            continue
        mhz = ops[index, TIMED_MHZ]
        duration = duration_at(ops[index, TIMED_US], mhz, ops[index, ELASTICITY], clock)
        kept = min(float(clock), mhz)
        watts = ops[index, DRAW_W] * math.pow(kept / law[BOOST_MHZ], law[EXPONENT])
        drawn[kind] += rows[index, COUNT] * (watts * duration * 1e-9)
        if rows[index, COMPUTES]:
            alone += rows[index, COUNT] * duration
    return alone


@kernel("i2 f2 f1 f1 i i i i", entry=True)
def find_clock(
    rows: Array, ops: Array, law: Array, drawn: Array, highest: int, step: int, count: int,
    beside: int,
) -> int:  # fmt: skip
    """Return the place, among ``count`` clocks from ``highest`` down, of the largest clock whose
    mean power keeps the cap if the passes take ``beside`` ns more than their compute."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        elapsed = load_at(rows, ops, law, highest - middle * step, 0, drawn) + beside
        joules = 0.0
        for family in range(FAMILIES):
            joules += drawn[family]
        watts = law[IDLE_W] + joules / max(1, elapsed) / 1e-9
        if watts <= law[CAP_W]:
            high = middle
        else:
            low = middle + 1
    return min(low, count - 1)
