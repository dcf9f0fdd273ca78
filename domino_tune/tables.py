"""The one table printer, of all commands and scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

PIPE_WIDTH = 200


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under ``columns``; a column named with a leading ``>`` is right-aligned.

    ``marked`` are indices of rows that stand out; ``notes`` are printed below.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    marked: Sequence[int] = ()
    notes: Sequence[str] = ()


def print_table(table: Table, file: TextIO | None = None) -> None:
    """Print to ``file`` (default stdout): coloured and fitted on a terminal, plain elsewhere."""
    from rich import box
    from rich.table import Table as RichTable

    console = _console(file)
    if table.title:
        print_line(table.title, file, "bold")
    rich_table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        right = column.startswith(">")
        rich_table.add_column(column.lstrip(">"), justify="right" if right else "left")
    for index, row in enumerate(table.rows):
        style = "bold green" if index in table.marked else None
        rich_table.add_row(*(_plain(cell) for cell in row), style=style)
    console.print(rich_table)
    for note in table.notes:
        print_line(note, file)


def print_line(text: str, file: TextIO | None = None, style: str | None = None) -> None:
    """Print one paragraph the same way."""
    _console(file).print(_plain(text), style=style, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _console(file: TextIO | None):  # type: ignore[no-untyped-def]
    from rich.console import Console

    out = file or sys.stdout
    return Console(
        file=out, width=None if out.isatty() else PIPE_WIDTH, highlight=False, emoji=False
    )
