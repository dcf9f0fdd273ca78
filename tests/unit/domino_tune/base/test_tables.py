"""Tables on a terminal that is too narrow for them, and without a terminal."""

from __future__ import annotations

import io

import pytest

from domino_tune.base.tables import Table, print_table, unfolded

TABLE = Table(
    columns=("", "plan", ">iteration", ">idle", ">memory"),
    rows=[("chosen", "domino 2x1/1 greedy wgrad=fill merged", "367.3 ms", "0.0 ms", "68.4 GiB")],
    narrow=("idle", "memory", "plan"),
    below="plan",
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def _printed(monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_table(TABLE, out)
    return out.getvalue()


@pytest.mark.parametrize("width", [100, 80, 70, 60, 40])
def test_what_matters_is_never_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = _printed(monkeypatch, width)
    for whole in ("domino 2x1/1 greedy wgrad=fill merged", "iteration", "367.3 ms", "chosen"):
        assert whole in text
    assert "…" not in text


def test_the_least_important_columns_go_first_and_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "also shows" not in _printed(monkeypatch, 100)
    assert "--wide or COLUMNS=200 also shows: idle." in _printed(monkeypatch, 75)
    assert "--wide or COLUMNS=200 also shows: idle, memory." in _printed(monkeypatch, 65)


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_unfolded_tables_have_all_columns(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    with unfolded(True):
        print_table(TABLE, out)
    head, _, row = (line for line in out.getvalue().splitlines() if line.strip())
    assert all(name.lstrip(">") in head for name in TABLE.columns)
    assert all(cell in row for cell in TABLE.rows[0])


def test_with_the_plan_below_there_is_room_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _printed(monkeypatch, 50)
    assert "chosen: domino 2x1/1 greedy wgrad=fill merged" in text
    assert "memory" in text
    assert "0.0 ms" in text


def test_off_a_terminal_nothing_is_wrapped() -> None:
    out = io.StringIO()
    print_table(Table(columns=("name", "text"), rows=[("a", "word " * 100 + "end")]), out)
    assert "word " * 100 + "end" in out.getvalue()


@pytest.mark.parametrize("told", ["", "wide", "0", "-5"])
def test_a_width_that_is_no_number_is_not_heeded(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv("COLUMNS", told)
    out = io.StringIO()
    print_table(TABLE, out)
    assert "68.4 GiB" in out.getvalue()
