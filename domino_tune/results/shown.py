"""Shown: results that show themselves, as the command line's tables or as HTML in a notebook."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table, print_line, print_table

if TYPE_CHECKING:
    from pandas import DataFrame

LONG: Final = 16
"""Rows above which a notebook shows a table folded."""


class Shown(ABC):
    """A result with tables for people and a frame for pandas."""

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the tables that the command line prints."""

    @abstractmethod
    def to_frame(self) -> DataFrame:
        """Return the result as a pandas DataFrame; units are in the names of its columns."""

    def alerts(self) -> Sequence[str]:
        """Return what the command line prints as warnings."""
        return ()

    def __str__(self) -> str:
        """Return the tables and the warnings as plain text."""
        out = io.StringIO()
        for table in self.tables():
            print_table(table, out)
        for text in self.alerts():
            print_line(f"warning: {text}", out)
        return out.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the tables and the warnings as HTML, for notebooks."""
        parts = [_html(table) for table in self.tables()]
        parts += [f"<p><b>warning</b>: {escape(text)}</p>" for text in self.alerts()]
        return "".join(parts)


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> DataFrame:
    """Return a DataFrame of ``rows`` with ``columns``, which an empty frame has, too."""
    from pandas import DataFrame  # late: the import takes half a second

    return DataFrame(list(rows), columns=list(columns))


def _html(table: Table) -> str:
    """Return a table as HTML, its title as a caption; a long one is folded behind its title."""
    sides = ["right" if column.startswith(">") else "left" for column in table.columns]
    names = [column.lstrip(">") for column in table.columns]
    rows = [_row("th", names, sides)]
    for index, row in enumerate(table.rows):
        cells = _row("td", row, sides)
        strong = ' style="font-weight: bold"' if index in table.marked else ""
        rows.append(cells.replace("<tr>", f"<tr{strong}>", 1))
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    title = escape(table.title)
    if len(table.rows) > LONG:
        body = f"<table>{''.join(rows)}</table>"
        return f"<details><summary>{title}</summary>{body}</details>{notes}"
    caption = f'<caption style="text-align: left">{title}</caption>' if title else ""
    return f"<table>{caption}{''.join(rows)}</table>{notes}"


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    inside = "".join(
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{inside}</tr>"
