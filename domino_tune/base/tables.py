"""The one table printer, of all commands and scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TextIO

NO_LIMIT: Final = 10_000
"""Columns of characters where there is no terminal: nothing is wrapped or left out there."""
GAP: Final = 3
"""Characters between two columns."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under ``columns``; a column named with a leading ``>`` is right-aligned.

    ``marked`` are indices of rows that stand out; ``notes`` are printed below. Where a terminal is
    too narrow, the columns named in ``narrow`` are left out, the first first; the one named
    ``below`` (also in ``narrow``) goes on lines of its own under the table instead.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    marked: Sequence[int] = ()
    notes: Sequence[str] = ()
    narrow: Sequence[str] = ()
    below: str = ""


def print_table(table: Table, file: TextIO | None = None) -> None:
    """Print to ``file`` (default stdout): coloured and fitted on a terminal, plain elsewhere."""
    from rich import box
    from rich.table import Table as RichTable

    console = _console(file)
    if table.title:
        print_line(table.title, file, "bold")
    shown = _shown(table, console.width)
    rich_table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in shown:
        justify: Literal["left", "right"] = "right" if table.columns[at][:1] == ">" else "left"
        rich_table.add_column(_names(table)[at], justify=justify, overflow="fold")
    for index, row in enumerate(table.rows):
        style = "bold green" if index in table.marked else None
        rich_table.add_row(*(_plain(row[at]) for at in shown), style=style)
    console.print(rich_table)
    for line in _left_out(table, shown):
        print_line(line, file)
    for note in table.notes:
        print_line(note, file)


def _names(table: Table) -> list[str]:
    return [column.lstrip(">") for column in table.columns]


def _shown(table: Table, width: int) -> list[int]:
    """Indices of the columns that fit, less important ones given up until they do."""
    names = _names(table)
    kept = set(range(len(names)))
    given_up: list[int] = []
    for name in table.narrow:
        if _width(table, kept) <= width:
            break
        given_up.append(names.index(name))
        kept.remove(given_up[-1])
    for at in reversed(given_up):  # a wide one gone, there may be room for others again
        if _width(table, kept | {at}) <= width:
            kept.add(at)
    return sorted(kept)


def _width(table: Table, kept: set[int]) -> int:
    from rich.cells import cell_len

    names = _names(table)
    widths = [max(map(cell_len, (names[at], *(row[at] for row in table.rows)))) for at in kept]
    return sum(widths) + GAP * len(widths)


def _left_out(table: Table, shown: Sequence[int]) -> list[str]:
    """The column that goes below, a line a row; then the names of those that are not shown."""
    names = _names(table)
    hidden = [name for at, name in enumerate(names) if at not in shown]
    lines = []
    if table.below in hidden:
        hidden.remove(table.below)
        at = names.index(table.below)
        lines = [f"{names[0]} {row[0]}: {row[at]}".strip() for row in table.rows]
    if hidden:
        lines.append(f"A wider terminal also shows: {', '.join(hidden)}.")
    return lines


def print_line(text: str, file: TextIO | None = None, style: str | None = None) -> None:
    """Print one paragraph the same way."""
    _console(file).print(_plain(text), style=style, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _console(file: TextIO | None):  # type: ignore[no-untyped-def]
    from rich.console import Console

    out = file or sys.stdout
    return Console(file=out, width=None if out.isatty() else NO_LIMIT, highlight=False, emoji=False)
