"""Merge rows into an existing section, and keep the provenance of its older numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

ASSUMED: Final = "assumed"


def merged_section(old: Any, rows: Sequence[Any], provenance: Any) -> Any:
    """Return section ``old`` with ``rows``, both older and new ones, and the new rows' provenance.

    If ``old`` is assumed, mark its laws as assumed. Rows have no kind of their own, so the section
    stays assumed as long as one of its older rows is left. The clock names those of both.
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
    """Return the section; if it is assumed, mark each of its laws as assumed, with the section's
    error.
    """
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
    """Return a text for the unknown clock of the new rows and the clock of the older numbers."""
    new = f"{kind} rows: not known; before: "
    return before if not before or before.startswith(new) else new + before
