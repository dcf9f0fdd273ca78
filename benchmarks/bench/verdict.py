"""Check: one number beside what it should be; a table of them says ok or MISS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domino_tune.base.tables import Table


class SkippedError(Exception):
    """What a benchmark needs is not at hand; the message says what."""


OK: Final = "ok"
MISS: Final = "MISS"
TOLD: Final = "-"


@dataclass(frozen=True, kw_only=True)
class Check:
    """``ok`` is None where there is no target, only a number to tell."""

    what: str
    target: str = TOLD
    measured: str
    ok: bool | None = None

    @property
    def verdict(self) -> str:
        """``ok``, ``MISS``, or ``-`` without a target."""
        return verdict(self.ok)


def verdict(ok: bool | None) -> str:
    """The word for a comparison."""
    return TOLD if ok is None else OK if ok else MISS


def at_most(what: str, limit: float, value: float, unit: str = "%", digits: int = 2) -> Check:
    """A number that must not exceed ``limit``; both in ``unit`` (fractions are given as %)."""
    scale = 100.0 if unit == "%" else 1.0
    gap = "" if unit == "%" else " "
    return Check(
        what=what,
        target=f"≤ {limit * scale:g}{gap}{unit}",
        measured=f"{value * scale:.{digits}f}{gap}{unit}",
        ok=value <= limit,
    )


def told(what: str, measured: str) -> Check:
    """A number without a target."""
    return Check(what=what, measured=measured)


def check_table(title: str, checks: Sequence[Check], notes: Sequence[str] = ()) -> Table:
    """The checks as a table."""
    return Table(
        title=title,
        columns=("what", ">target", ">measured", "verdict"),
        rows=[(c.what, c.target, c.measured, c.verdict) for c in checks],
        notes=notes,
    )


def count_verdicts(tables: Sequence[Table]) -> tuple[int, int]:
    """(ok, missed) over every row that carries a verdict in its last cell."""
    words = [row[-1] for table in tables for row in table.rows if row]
    return words.count(OK), words.count(MISS)
