"""Provenance: the source of a section's numbers, and how well it is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from simulator.lookup import ABSENT_IF_EMPTY, require_choice, require_number

ProvenanceKind = Literal["measured", "imported", "fitted", "assumed"]
PROVENANCE_KINDS: Final = ("measured", "imported", "fitted", "assumed")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Source of a section's numbers; ``error`` is their relative leave-out error.

    ``clock``: at what clock the GPU ran while they were timed, as far as it is known.
    """

    kind: ProvenanceKind
    source: str
    error: float | None = None
    clock: str = field(default="", metadata=ABSENT_IF_EMPTY)
    note: str = ""

    def __post_init__(self) -> None:
        require_choice("provenance", "kind", self.kind, PROVENANCE_KINDS)
        if self.error is not None:
            require_number("provenance", "error", self.error)
