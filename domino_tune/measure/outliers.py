"""Rows with a large spread: the machine was disturbed, or the op has no single duration."""

from __future__ import annotations

from typing import Final

from domino_tune.results.profile import Outlier
from simulator.profile import Profile

LARGE_SPREAD: Final = 0.25
"""Half of the interquartile range of the timings, over their median."""
SHORT_US: Final = 50.0
"""Shortest median: below it, clocks and interrupts alone cause such a spread."""


def outliers_of(profile: Profile) -> tuple[Outlier, ...]:
    """Return the rows with a large spread, longest op first."""
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
    """Return the op's signature as a short text."""
    fields = row._asdict() if hasattr(row, "_asdict") else vars(row)
    timing = ("median_us", "spread_us", "samples")
    return " ".join(f"{k}={v}" for k, v in fields.items() if k not in timing and v is not False)
