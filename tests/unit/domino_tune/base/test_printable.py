"""What a file says does not command the terminal that shows it."""

from __future__ import annotations

import io

import pytest

from domino_tune.base.errors import printable
from domino_tune.base.tables import Table, print_line, print_table

HOSTILE = "\x1b]0;mine\x07 \x9b2J a\rb \u202egnp.exe\u2066 \u200b"


@pytest.mark.parametrize(
    "text", ["", "plain", "two\nlines", "µs × 2 – “quoted” 中", "a\u00a0b", "[bold]x[/bold]"]
)
def test_text_that_is_seen_as_itself_stays(text: str) -> None:
    assert printable(text) == text


def test_all_else_is_escaped() -> None:
    assert printable(HOSTILE) == (r"\x1b]0;mine\x07 \x9b2J a\rb \u202egnp.exe\u2066 \u200b")


def test_tables_and_lines_escape_what_they_are_given() -> None:
    out = io.StringIO()
    print_table(Table(columns=("gpu",), rows=[(HOSTILE,)], title=HOSTILE, notes=[HOSTILE]), out)
    print_line(HOSTILE, out)
    assert out.getvalue().count(printable(HOSTILE)) == 4
    assert all(one == "\n" or one.isprintable() for one in out.getvalue())
