"""Importers: read published tables into profiles, one per format. May import store."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

from domino_tune.measure.importers.imported import (
    ASSUMED,
    NO_HINTS,
    Hints,
    ImportedRows,
    Importer,
    key_of,
    merged_section,
    with_laws_as_known,
)
from domino_tune.measure.importers.nccl import nccl_json, nccl_table, nccl_text
from domino_tune.measure.importers.tables import (
    attention_csv,
    attention_pair_csv,
    busbw_csv,
    collectives_csv,
    cta_all_reduce_csv,
    eager_all_reduce_csv,
    gemm_csv,
    pointwise_csv,
)
from domino_tune.store.profiles import LEFT_OUT, check_section
from simulator.errors import unknown_name
from simulator.lookup import Provenance
from simulator.profile import (
    SECTIONS,
    AttentionSection,
    CollectiveSection,
    GemmSection,
    PointwiseSection,
    Profile,
)

__all__ = [
    "IMPORTERS", "NO_HINTS", "Hints", "ImportedRows", "Importer", "descriptions", "import_into",
    "not_from", "read_table",
]  # fmt: skip

IMPORTERS: Final[dict[str, Importer]] = {
    "nccl-tests": nccl_text,
    "nccl-tests-json": nccl_json,
    "nccl-tests-csv": nccl_table,
    "busbw-csv": busbw_csv,
    "gemm-csv": gemm_csv,
    "collectives-csv": collectives_csv,
    "eager-all-reduce-csv": eager_all_reduce_csv,
    "cta-all-reduce-csv": cta_all_reduce_csv,
    "attention-csv": attention_csv,
    "attention-pair-csv": attention_pair_csv,
    "pointwise-csv": pointwise_csv,
}
MOST_ERROR: Final = 10.0
"""The largest error that a profile may state: such look-ups are of no use."""
_SECTION_TYPES: Final[dict[str, Any]] = {
    "gemm": GemmSection,
    "attention": AttentionSection,
    "pointwise": PointwiseSection,
    "collectives": CollectiveSection,
}


def read_table(data: bytes, importer: str, hints: Hints = NO_HINTS) -> ImportedRows:
    """Return the rows of a file in the named format; raise InputError with place and reason."""
    if importer not in IMPORTERS:
        raise unknown_name("importer", importer, IMPORTERS)
    return IMPORTERS[importer](data, hints)


def descriptions() -> list[tuple[str, str]]:
    """Return (name, what it is and its columns) of every format, for the help."""
    return [(name, one.description) for name, one in IMPORTERS.items()]


def import_into(profile: Profile, imported: ImportedRows, *, source: str, data: bytes) -> Profile:
    """Return the profile with the rows added; a row replaces the old one of the same signature.

    The section's laws stay, after the rows; those of an assumed section are assumed, see
    ``merged_section``. Its provenance becomes ``imported``: the source's name and the SHA-256 of
    its bytes, then all earlier provenance; its error is the rows' leave-out error. A new profile
    starts as ``Profile(name=…, created=…, machine=…)``.
    """
    old = getattr(profile, imported.section)
    rows = {key_of(row): row for row in (*(old.rows if old else ()), *imported.rows)}
    ordered = tuple(rows[key] for key in sorted(rows))
    label = f"{source} (sha256:{hashlib.sha256(data).hexdigest()}, {len(imported.rows)} rows)"
    notes = [imported.note + "."] if imported.note else []
    if old is not None:
        before = old.provenance
        notes += [f"Before: {before.kind}, {before.source}.", before.note]
        if label == before.source:  # the same table again
            notes = [before.note]
    provenance = Provenance(kind="imported", source=label, note=" ".join(filter(None, notes)))
    if old is None:
        section = _SECTION_TYPES[imported.section](rows=ordered, provenance=provenance)
    else:
        section = merged_section(old, ordered, provenance)
    result = replace(profile, **{imported.section: section})
    checked = check_section(result, imported.section)
    if checked.how != LEFT_OUT or checked.error is None:
        return result
    error = max(min(checked.error, MOST_ERROR), section.provenance.error or 0.0)
    known = replace(section, provenance=replace(section.provenance, error=error))
    return replace(result, **{imported.section: known})


def not_from(profile: Profile, base: Profile) -> list[str]:
    """Return the parts in which ``profile`` is not ``base`` with further rows imported."""
    parts = [
        name for name in ("machine", "created") if getattr(profile, name) != getattr(base, name)
    ]
    return parts + [
        name for name in SECTIONS if not _has_grown(getattr(profile, name), getattr(base, name))
    ]


def _has_grown(now: Any, base: Any) -> bool:
    """Return whether section ``now`` is ``base`` or came from it by imports."""
    if now == base:
        return True
    if now is None:
        return False
    stays_assumed = base is not None and now.provenance.kind == base.provenance.kind == ASSUMED
    if now.provenance.kind != "imported" and not stays_assumed:
        return False
    if base is None:
        return True
    kept = {key_of(row) for row in base.rows} <= {key_of(row) for row in now.rows}
    known = with_laws_as_known(base)
    return kept and replace(now, rows=base.rows, provenance=base.provenance) == known
