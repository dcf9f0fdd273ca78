"""Tables as Markdown, for the pages of results/."""

from __future__ import annotations

from domino_tune.base.tables import Table


def markdown_section(table: Table) -> str:
    """Return a table as Markdown, after its title and before its notes."""
    names = [column.lstrip(">") for column in table.columns]
    rule = ["--:" if column.startswith(">") else "---" for column in table.columns]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    rows = (f"| {' | '.join(row)} |" for row in (names, rule, *cells))
    notes = (f"\n{note}" for note in table.notes)
    return "\n".join([f"## {table.title}", "", *rows, *notes, ""])
