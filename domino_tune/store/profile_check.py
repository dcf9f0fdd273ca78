"""The error of a profile's look-ups: leave out each section's rows and look them up again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.lookup.attention import AttentionFit, AttentionRow, AttentionTable
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow, PointwiseTable
from simulator.profile import SECTIONS, Profile

MOST_ROWS: Final = 300  # rows to leave out one by one, picked evenly
LEFT_OUT: Final = "rows left out and looked up"


@dataclass(frozen=True, kw_only=True)
class SectionCheck:
    """One line of ``profiles check``.

    ``error`` is relative, None where it is unknown; ``how`` says how it was found.
    """

    section: str
    kind: str
    rows: int
    fits: int
    error: float | None
    how: str
    source: str


def check_profile(profile: Profile) -> list[SectionCheck]:
    """Return each section's leave-out error: of its rows where they suffice, else its fit's own."""
    return [check_section(profile, name) for name in SECTIONS if getattr(profile, name) is not None]


def check_section(profile: Profile, name: str) -> SectionCheck:
    """Return the check of one section, which the profile must have."""
    section = getattr(profile, name)
    rows = getattr(section, "rows", ())
    fits = getattr(section, "fits", None)
    if fits is None:
        fits = [fit for fit in (getattr(section, "fit", None),) if fit is not None]
    error, how = section.provenance.error, "as its provenance says"
    if rows:
        left_out = _LOOK_UPS[name](profile)
        if not math.isnan(left_out):
            error, how = _four_digits(left_out), LEFT_OUT
    return SectionCheck(
        section=name,
        kind=section.provenance.kind,
        rows=len(rows),
        fits=len(fits),
        error=error,
        how=how,
        source=section.provenance.source,
    )


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def _gemm(profile: Profile) -> float:
    table, section = profile.gemm_table(), profile.section("gemm")
    families = sorted({(row.layout, row.dtype) for row in section.rows})
    errors = [table.leave_out_error(layout, dtype) for layout, dtype in families]
    return max(errors)


def _attention(profile: Profile) -> float:
    section = profile.section("attention")
    fit: AttentionFit | None = section.fit

    def look_up(others: Sequence[AttentionRow], row: AttentionRow) -> float:
        return AttentionTable(others, fit).estimate(row.signature).duration_us

    return _leave_out(section.rows, look_up)


def _pointwise(profile: Profile) -> float:
    section = profile.section("pointwise")
    fits: tuple[PointwiseFit, ...] = section.fits
    errors = []
    for name, group in itertools.groupby(section.rows, key=lambda row: row.name):
        rows = [row for row in group if row.bytes_written]  # others do nothing
        laws = [fit for fit in fits if name in fit.names]

        def look_up(
            others: Sequence[PointwiseRow],
            row: PointwiseRow,
            laws: Sequence[PointwiseFit] = laws,
        ) -> float:
            return PointwiseTable(others, laws).estimate(row.signature).duration_us

        errors.append((_leave_out(rows, look_up), len(rows)))
    return _weighted(errors)


def _collectives(profile: Profile) -> float:
    return collective_error(profile.section("collectives").rows)


def collective_error(rows: Sequence[CollectiveRow]) -> float:
    """Return the mean leave-one-out error of collective rows, without the ends of each group."""
    errors = []
    for _, group in itertools.groupby(rows, key=lambda row: row.group):
        line = list(group)
        for index in range(1, len(line) - 1):
            row = line[index]
            table = CollectiveTable(line[:index] + line[index + 1 :])
            errors.append(abs(table.estimate(row.signature).duration_us / row.median_us - 1))
    return sum(errors) / len(errors) if errors else math.nan


def _leave_out(rows: Sequence[Any], look_up: Callable[[Sequence[Any], Any], float]) -> float:
    """Return the mean error of up to MOST_ROWS rows, each looked up in a table of all others."""
    if len(rows) < 3:
        return math.nan
    stride = -(-len(rows) // MOST_ROWS)
    errors: list[float] = [
        abs(look_up((*rows[:index], *rows[index + 1 :]), rows[index]) / rows[index].median_us - 1)
        for index in range(0, len(rows), stride)
    ]
    return sum(errors) / len(errors)


def _weighted(errors: Sequence[tuple[float, int]]) -> float:
    known = [(error, count) for error, count in errors if not math.isnan(error)]
    total = sum(count for _, count in known)
    return sum(error * count for error, count in known) / total if total else math.nan


_LOOK_UPS: Final[dict[str, Callable[[Profile], float]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "pointwise": _pointwise,
    "collectives": _collectives,
}
