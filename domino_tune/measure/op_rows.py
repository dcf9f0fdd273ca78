"""Adds many rows of compute ops to a profile at once. A section is sorted and checked only once, so
that adding a report takes milliseconds of a core that a rank may be using."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, TypeVar

from simulator.lookup import Provenance, Timing
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.ops import Attention, Collective, Gemm, Pointwise, Signature
from simulator.profile import AttentionSection, GemmSection, PointwiseSection, Profile, gemm_key

KINDS: Final[Mapping[str, type[Any]]] = {
    "gemm": Gemm, "attention": Attention, "pointwise": Pointwise, "collective": Collective,
}  # fmt: skip
SECTIONS: Final[Mapping[str, tuple[type[Any], type[Any], Callable[[Any], Any]]]] = {
    "gemm": (GemmSection, GemmRow, gemm_key),
    "attention": (AttentionSection, AttentionRow, attrgetter("key")),
    "pointwise": (PointwiseSection, PointwiseRow, attrgetter("key")),
}
"""Kind of op → its section, the section's row type, and the key of a row."""
TIMING: Final = ("median_us", "spread_us", "samples")
MEASURED: Final = Provenance(
    kind="measured",
    source="domino_tune profile: the runtime's own ops, timed in place on all ranks at once",
)


Row = TypeVar("Row", bound=Timing)


def signature_from(plain: list[Any]) -> Signature:
    """Return a signature from its JSON form: kind, then the fields."""
    kind, *fields = plain
    values = [tuple(value) if isinstance(value, list) else value for value in fields]
    signature: Signature = KINDS[kind](*values)
    return signature


def add_ops(
    profile: Profile, rows: Iterable[Mapping[str, Any]], before: Profile | None = None
) -> Profile:
    """Return ``profile`` with the ``ops`` rows of a ``plan`` message, each merged with its row in
    ``before``, which holds the measurements of earlier runs. A row of ``profile`` with more samples
    stays."""
    plain: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SECTIONS}
    for row in rows:
        signature = signature_from(row["signature"])
        timing = {name: row[name] for name in TIMING}
        _, row_type, _ = SECTIONS[signature.kind]
        known = inspect.signature(row_type).parameters  # real ranks play no softcap, no ring
        shape = {name: value for name, value in signature._asdict().items() if name in known}
        plain[signature.kind].append({**shape, **timing})
    for kind, (section, row_type, key) in SECTIONS.items():
        if plain[kind]:
            found = [row_type(**row) for row in plain[kind]]
            by_key = [
                {key(row): row for row in some}
                for some in (_rows(profile, kind), _rows(before, kind), found)
            ]
            changed = section(rows=add_rows(*by_key), provenance=MEASURED)
            profile = replace(profile, **{kind: changed})
    return profile


def add_rows(
    known: Mapping[Any, Row], before: Mapping[Any, Row], found: Mapping[Any, Row]
) -> tuple[Row, ...]:
    """Return ``known`` and ``found`` rows, sorted by key. Found rows are merged with those of
    ``before``, the start of the run; a known row with more samples stays."""
    rows = dict(known)
    for key, row in found.items():
        whole = together(row, before[key]) if key in before else row
        if key not in rows or rows[key].samples <= whole.samples:
            rows[key] = whole
    return tuple(rows[key] for key in sorted(rows))


def together(one: Row, other: Row) -> Row:
    """Return two rows of one signature as one: means weighted by samples."""
    samples = one.samples + other.samples
    share = one.samples / samples
    timing = {
        "median_us": share * one.median_us + (1 - share) * other.median_us,
        "spread_us": share * one.spread_us + (1 - share) * other.spread_us,
        "samples": samples,
    }
    changed: Any = one
    merged: Row = (
        changed._replace(**timing) if hasattr(one, "_replace") else replace(changed, **timing)
    )
    return merged


def _rows(profile: Profile | None, kind: str) -> tuple[Any, ...]:
    section = getattr(profile, kind, None)
    return section.rows if section else ()


def measured_ops(profile: Profile) -> set[Signature]:
    """Return the signatures of compute ops that the profile has rows of."""
    return {row.signature for kind in SECTIONS for row in _rows(profile, kind)}
