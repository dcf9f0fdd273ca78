"""Tables of results, and checks: a measured number beside its target, ok or MISS in each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table


class SkippedError(Exception):
    """A benchmark cannot run here. The message says what it needs."""


OK: Final = "ok"
MISS: Final = "MISS"
NO_TARGET: Final = "-"


class Check(NamedTuple):
    """One row: what was measured, its target and the number. ``ok`` is None without a target."""

    what: str
    target: str
    measured: str
    ok: bool | None = None


def verdict(ok: bool | None) -> str:
    """Return the word for a comparison: ``ok``, ``MISS``, or ``-`` for None."""
    return NO_TARGET if ok is None else OK if ok else MISS


def at_most(what: str, limit: float, value: float, unit: str = "%", digits: int = 2) -> Check:
    """Return a check that ``value`` is at most ``limit``. For ``%`` both are fractions."""
    scale, gap = (100.0, "") if unit == "%" else (1.0, " ")
    measured = f"{value * scale:.{digits}f}{gap}{unit}"
    return Check(what, f"≤ {limit * scale:g}{gap}{unit}", measured, value <= limit)


def at_least(what: str, limit: float, share: float) -> Check:
    """Return a check that a share is at least ``limit``."""
    return Check(what, f"≥ {limit:.0%}", f"{share:.1%}", share >= limit)


def equal(what: str, target: int, value: int) -> Check:
    """Return a check that ``value`` is ``target``."""
    return Check(what, str(target), str(value), value == target)


def reported(what: str, measured: str) -> Check:
    """Return a check without a target."""
    return Check(what, NO_TARGET, measured)


def table(title: str, columns: str, rows: Iterable[Sequence[object]], *notes: str) -> Table:
    """Return a table. ``columns``: names with ``|`` between them, ``>`` before those of numbers."""
    shown = [tuple(map(str, row)) for row in rows]
    return Table(title=title, columns=columns.split("|"), rows=shown, notes=notes)


def check_table(title: str, checks: Iterable[Check], *notes: str) -> Table:
    """Return the checks as a table, one row each."""
    rows = ((*check[:3], verdict(check.ok)) for check in checks)
    return table(title, "what|>target|>measured|verdict", rows, *notes)


def shown(forms: Mapping[str, Any], name: str, rows: Iterable[Any], **facts: object) -> Table:
    """Return checks, or rows, as the table of this name in ``forms``: title, columns (none: checks)
    and notes, with ``facts`` in them, and perhaps ``cells``, the form of what is in a row."""
    told = {"columns": "", "cells": "", "notes": (), **forms[name]}
    if told["cells"]:
        rows = [told["cells"].format(*row).split("|") for row in rows]
    texts = (told["title"], told["columns"], *told["notes"])
    title, columns, *notes = (text.format(**facts) for text in texts)
    return table(title, columns, rows, *notes) if columns else check_table(title, rows, *notes)


def missed(checks: Sequence[Check]) -> bool:
    """Return whether any of the targets is missed."""
    return any(check.ok is False for check in checks)


def count_verdicts(tables: Sequence[Table]) -> tuple[int, int]:
    """Return how many rows end in ``ok``, and how many in ``MISS``."""
    words = [row[-1] for each in tables for row in each.rows if row]
    return words.count(OK), words.count(MISS)


def markdown_section(each: Table) -> str:
    """Return a table as Markdown, after its title and before its notes."""
    names = [column.lstrip(">") for column in each.columns]
    rule = ["--:" if column.startswith(">") else "---" for column in each.columns]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in each.rows]
    rows = (f"| {' | '.join(row)} |" for row in (names, rule, *cells))
    return "\n".join([f"## {each.title}", "", *rows, *(f"\n{note}" for note in each.notes), ""])
