"""Skew: ranks of a group are never equally fast, and a collective waits for the last of them.

Measured quantities describe it. Over a whole step the slowest rank needs ``slowest_factor`` times
the mean of all ranks; the step takes as long as that rank. Over a shorter stretch of compute
another rank may be the slowest. The collective at the end of the stretch then waits for it: on the
rank that is slowest over the step, by the ``wait_us`` of the stretch's length. Compute beside a
collective differs between ranks far more than compute alone, where packets are moved by whichever
core is at it; so its length counts apart. Both parts of a wait are chance, and independent: they
add up as the roots of squares do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.errors import ProfileError
from simulator.lookup import ABSENT_IF_EMPTY, require_count, require_number, require_positive


class SkewRow(NamedTuple):
    """Mean wait of a collective, ``wait_us``, behind ``compute_us`` of compute."""

    compute_us: float
    wait_us: float


@dataclass(frozen=True, kw_only=True)
class SkewFit:
    """The law of this module's docstring: linear between rows, from (0, 0) on; constant behind the
    last row. ``rows`` are of compute alone, ``beside`` of compute beside collectives. ``error`` is
    the relative error of ``slowest_factor``; ``samples`` is the number of
    measured steps, 0 if unknown."""

    slowest_factor: float
    rows: tuple[SkewRow, ...] = ()
    beside: tuple[SkewRow, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)
    error: float
    samples: int = field(default=0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "skew fit"
        require_number(owner, "slowest_factor", self.slowest_factor, low=1.0)
        require_number(owner, "error", self.error)
        require_count(owner, "samples", self.samples, low=0)
        for name, rows in (("rows", self.rows), ("beside", self.beside)):
            lengths = [row.compute_us for row in rows]
            for row in rows:
                require_positive(owner, "compute_us", row.compute_us)
                require_number(owner, "wait_us", row.wait_us)
            if lengths != sorted(set(lengths)):
                raise ProfileError(
                    f"skew fit: {name} must be sorted by compute_us, each length once."
                )

    def wait_us(self, alone_us: float, beside_us: float = 0.0) -> float:
        """Return the mean wait (µs) of a collective behind ``alone_us`` of compute alone and
        ``beside_us`` of compute beside collectives."""
        return math.hypot(_between(self.rows, alone_us), _between(self.beside, beside_us))


def _between(rows: Sequence[SkewRow], compute_us: float) -> float:
    if not rows:
        return 0.0
    index = bisect_left(rows, (compute_us, 0.0))
    if index == len(rows):
        return rows[-1].wait_us
    low = rows[index - 1] if index else SkewRow(0.0, 0.0)
    high = rows[index]
    share = (compute_us - low.compute_us) / (high.compute_us - low.compute_us)
    return low.wait_us + share * (high.wait_us - low.wait_us)
