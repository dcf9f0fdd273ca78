"""Check: a measured number beside its target. A table of checks says ok or MISS in each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domino_tune.base.tables import Table


class SkippedError(Exception):
    """A benchmark cannot run here. The message says what it needs."""


OK: Final = "ok"
MISS: Final = "MISS"
NO_TARGET: Final = "-"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row: what was measured, its target and the number. ``ok`` is None without a target."""

    what: str
    target: str = NO_TARGET
    measured: str
    ok: bool | None = None


def verdict(ok: bool | None) -> str:
    """Return the word for a comparison: ``ok``, ``MISS``, or ``-`` for None."""
    return NO_TARGET if ok is None else OK if ok else MISS


def at_most(what: str, limit: float, value: float, unit: str = "%", digits: int = 2) -> Check:
    """Return a check that ``value`` is at most ``limit``. For ``%`` both are fractions."""
    scale = 100.0 if unit == "%" else 1.0
    gap = "" if unit == "%" else " "
    return Check(
        what=what,
        target=f"≤ {limit * scale:g}{gap}{unit}",
        measured=f"{value * scale:.{digits}f}{gap}{unit}",
        ok=value <= limit,
    )


def at_least(what: str, limit: float, share: float) -> Check:
    """Return a check that a share is at least ``limit``."""
    return Check(what=what, target=f"≥ {limit:.0%}", measured=f"{share:.1%}", ok=share >= limit)


def equal(what: str, target: int, value: int) -> Check:
    """Return a check that ``value`` is ``target``."""
    return Check(what=what, target=str(target), measured=str(value), ok=value == target)


def reported(what: str, measured: str) -> Check:
    """Return a check without a target."""
    return Check(what=what, measured=measured)


def check_table(title: str, checks: Sequence[Check], notes: Sequence[str] = ()) -> Table:
    """Return the checks as a table, one row each."""
    return Table(
        title=title,
        columns=("what", ">target", ">measured", "verdict"),
        rows=[(c.what, c.target, c.measured, verdict(c.ok)) for c in checks],
        notes=notes,
    )


def missed(checks: Sequence[Check]) -> bool:
    """Return whether any of the targets is missed."""
    return any(check.ok is False for check in checks)


def count_verdicts(tables: Sequence[Table]) -> tuple[int, int]:
    """Return how many rows end in ``ok``, and how many in ``MISS``."""
    words = [row[-1] for table in tables for row in table.rows if row]
    return words.count(OK), words.count(MISS)
