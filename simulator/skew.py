"""Skew: ranks of a group are never equally fast, and a collective waits for the last of them.

Measured quantities describe it. A whole step takes longer than its ops' rows add up to, by the
share ``step_excess``: rows are medians, durations lean to the long side, and the median of a sum is
near the sum of the means. Over a whole step the slowest rank needs ``slowest_factor`` times the
mean of all ranks; the step takes as long as it. Over a shorter stretch another rank may be slower.
The collective at the end of the stretch then waits for it: on the rank that is slowest over the
step, by the ``wait_us`` of the stretch's length. Compute beside a collective differs between ranks
far more than compute alone, where packets are moved by whichever core is at it; so its length
counts apart. Both parts of a wait are chance, and independent: they add up as the roots of squares
do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.curve import between, check_curve
from simulator.lookup import ABSENT_IF_EMPTY, require_count, require_number


class SkewRow(NamedTuple):
    """Mean wait of a collective, ``wait_us``, after ``compute_us`` of compute."""

    compute_us: float
    wait_us: float


@dataclass(frozen=True, kw_only=True)
class SkewFit:
    """The law of this module's docstring: linear between rows, from (0, 0) on; constant after the
    last row. ``rows`` are of compute alone, ``beside`` of compute beside collectives. ``error`` is
    the relative error of ``slowest_factor`` from step to step; ``samples`` is the number of
    measured steps, 0 if unknown."""

    slowest_factor: float
    step_excess: float = field(default=0.0, metadata=ABSENT_IF_EMPTY)
    rows: tuple[SkewRow, ...] = ()
    beside: tuple[SkewRow, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)
    error: float
    samples: int = field(default=0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "skew fit"
        require_number(owner, "slowest_factor", self.slowest_factor, low=1.0)
        require_number(owner, "step_excess", self.step_excess)
        require_number(owner, "error", self.error)
        require_count(owner, "samples", self.samples, low=0)
        for rows in (self.rows, self.beside):
            check_curve(owner, ("compute_us", "wait_us"), rows)

    @property
    def compute_factor(self) -> float:
        """Return how much longer the slowest rank's step is than its ops' rows add up to."""
        return self.slowest_factor * (1.0 + self.step_excess)

    def wait_us(self, alone_us: float, beside_us: float = 0.0) -> float:
        """Return the mean wait (µs) of a collective after ``alone_us`` of compute alone and
        ``beside_us`` of compute beside collectives."""
        return math.hypot(between(self.rows, alone_us), between(self.beside, beside_us))
