"""Tables as Markdown, for the pages of results/."""

from __future__ import annotations

from domino_tune.base.tables import Table


def markdown_rows(table: Table) -> str:
    """Return the columns and rows of a table as Markdown."""
    names = [column.lstrip(">") for column in table.columns]
    rule = ["--:" if column.startswith(">") else "---" for column in table.columns]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rule, *rows))


def markdown_section(table: Table) -> str:
    """Return a table as Markdown, after its title and before its notes."""
    notes = (f"\n{note}" for note in table.notes)
    return "\n".join([f"## {table.title}", "", markdown_rows(table), *notes, ""])
