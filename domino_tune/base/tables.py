"""Print tables: for all commands and scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, TextIO

from domino_tune.base.errors import printable

NO_LIMIT: Final = 10_000
"""Width in characters at which no text is wrapped or left out."""
READABLE: Final = 100
"""Width without a terminal of tables that can leave out columns, unless COLUMNS gives another."""
GAP: Final = 3
"""Characters between two columns."""
_UNFOLDED: Final = ContextVar("unfolded", default=False)
"""Whether tables have all columns, and nothing in them is wrapped."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under ``columns``; a column named with a leading ``>`` is right-aligned.

    ``marked`` are indices of highlighted rows; ``notes`` are printed below. Where the table is too
    wide, the columns named in ``narrow`` are left out, in this order; the column ``below`` (also in
    ``narrow``) is then printed under the table, one line for all rows that have the same.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    marked: Sequence[int] = ()
    notes: Sequence[str] = ()
    narrow: Sequence[str] = ()
    below: str = ""


def print_table(table: Table, file: TextIO | None = None) -> None:
    """Print to ``file`` (default stdout): coloured and fitted to a terminal, plain elsewhere."""
    from rich import box
    from rich.table import Table as RichTable

    console = _console(file)
    if table.title:
        print_line(table.title, file, "bold")
    shown = _shown(table, _readable(console.width))
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


@contextmanager
def unfolded(asked: bool) -> Iterator[None]:
    """Print tables with all columns, however wide, if ``asked``."""
    before = _UNFOLDED.set(asked)
    try:
        yield
    finally:
        _UNFOLDED.reset(before)


def _readable(width: int) -> int:
    """Return how wide a table may be that can leave out columns, where a line has ``width``."""
    if width < NO_LIMIT or _UNFOLDED.get():
        return width
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdecimal() and int(told) else READABLE


def _names(table: Table) -> list[str]:
    return [column.lstrip(">") for column in table.columns]


def _shown(table: Table, width: int) -> list[int]:
    """Return indices of the columns that fit, after leaving out the less important ones."""
    names = _names(table)
    columns = set(range(len(names)))
    dropped: list[int] = []
    for name in table.narrow:
        if _width(table, columns) <= width:
            break
        dropped.append(names.index(name))
        columns.remove(dropped[-1])
    for at in reversed(dropped):  # without a wide column there may be room for others again
        if _width(table, columns | {at}) <= width:
            columns.add(at)
    return sorted(columns)


def _width(table: Table, columns: set[int]) -> int:
    from rich.cells import cell_len

    names = _names(table)
    widths = [max(map(cell_len, (names[at], *(row[at] for row in table.rows)))) for at in columns]
    return sum(widths) + GAP * len(widths)


def _left_out(table: Table, shown: Sequence[int]) -> list[str]:
    """Return the lines of the column ``below``, then one with the names of hidden columns."""
    names = _names(table)
    hidden = [name for at, name in enumerate(names) if at not in shown]
    lines = []
    if table.below in hidden:
        hidden.remove(table.below)
        at = names.index(table.below)
        rows: dict[str, list[str]] = {}
        for row in table.rows:
            rows.setdefault(row[at], []).append(row[0])
        lines = [f"{', '.join(dict.fromkeys(first))}: {text}" for text, first in rows.items()]
    if hidden:
        lines.append(f"--wide or COLUMNS=200 also shows: {', '.join(hidden)}.")
    return lines


def print_line(text: str, file: TextIO | None = None, style: str | None = None) -> None:
    """Print one paragraph to ``file`` (default stdout)."""
    _console(file).print(_plain(text), style=style, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def _console(file: TextIO | None):  # type: ignore[no-untyped-def]
    from rich.console import Console

    out = file or sys.stdout
    fits = out.isatty() and not _UNFOLDED.get()
    return Console(file=out, width=None if fits else NO_LIMIT, highlight=False, emoji=False)
