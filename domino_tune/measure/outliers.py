"""Rows whose timings disagree: something disturbed the machine, or the op has no one duration."""

from __future__ import annotations

from typing import Final

from domino_tune.results.profile import Outlier
from simulator.profile import Profile

LARGE_SPREAD: Final = 0.25
"""Half of the range of the middle half of the timings, over their median."""
SHORT_US: Final = 50.0
"""Below this, clocks and interrupts alone make such a spread."""


def outliers_of(profile: Profile) -> tuple[Outlier, ...]:
    """The rows of a large spread, those that take longest first."""
    found = []
    for name in ("gemm", "attention", "pointwise", "collectives"):
        section = getattr(profile, name)
        for row in section.rows if section else ():
            spread = row.spread_us / row.median_us
            if spread > LARGE_SPREAD and row.median_us >= SHORT_US:
                found.append(
                    Outlier(section=name, op=_op(row), median_us=row.median_us, spread=spread)
                )
    return tuple(sorted(found, key=lambda outlier: -outlier.median_us))


def _op(row: object) -> str:
    """What was timed, in short."""
    fields = row._asdict() if hasattr(row, "_asdict") else vars(row)
    timing = ("median_us", "spread_us", "samples")
    return " ".join(f"{k}={v}" for k, v in fields.items() if k not in timing and v is not False)
