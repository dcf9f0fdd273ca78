"""Merging rows into a section that has some: keeps what is known of the section's older numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

ASSUMED: Final = "assumed"


def merged_section(old: Any, rows: Sequence[Any], provenance: Any) -> Any:
    """Return section ``old`` with ``rows``, some of which are new, and the new rows' provenance.

    Where ``old`` is assumed, its laws are assumed from now on. Rows have no kind of their own, so
    while any of its rows is left, the section stays assumed. Clocks are those of both.
    """
    before = old.provenance
    clock = _clock(before.clock, provenance.kind)
    if before.kind == ASSUMED and not {*old.rows}.isdisjoint(rows):
        errors = [one.error for one in (before, provenance) if one.error is not None]
        provenance = replace(provenance, kind=ASSUMED, error=max(errors, default=None))
    return replace(
        with_laws_as_known(old), rows=tuple(rows), provenance=replace(provenance, clock=clock)
    )


def with_laws_as_known(section: Any) -> Any:
    """Return the section; where it is assumed, its laws say so themselves, with its error."""
    provenance = section.provenance
    if provenance.kind != ASSUMED:
        return section
    least = provenance.error or 0.0

    def assumed(law: Any) -> Any:
        return replace(law, kind=ASSUMED, error=max(law.error, least))

    if hasattr(section, "fits"):
        return replace(section, fits=tuple(assumed(law) for law in section.fits))
    return replace(section, fit=section.fit and assumed(section.fit))


def _clock(before: str, kind: str) -> str:
    """Return the clock of new rows, which is not known, with that of the older numbers."""
    new = f"{kind} rows: not known; before: "
    return before if not before or before.startswith(new) else new + before
