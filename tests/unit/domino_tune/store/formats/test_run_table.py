"""Tables of measured runs: what is read, and which cells are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.store.formats.run_table import MOST_RUNS, RunRow, checked_ms, read_runs
from simulator.errors import InputError
from tests.conftest import REPOSITORY

TABLE = """# Measured on a Tuesday.
label, tp, --micro-batch-size, measured_ms
 "two ranks, small", 2, 4, 12.5

, 4, , 1e2
"""


def test_rows_are_options_and_a_time() -> None:
    assert read_runs(TABLE, "a table") == [
        RunRow("two ranks, small", {"tp": "2", "--micro-batch-size": "4"}, 12.5),
        RunRow("run 2", {"tp": "4", "--micro-batch-size": ""}, 100.0),
    ]


def test_line_ends_of_other_systems_are_read() -> None:
    assert read_runs(TABLE.replace("\n", "\r\n"), "a table") == read_runs(TABLE, "a table")


def test_the_table_of_the_examples_is_read() -> None:
    path = Path(REPOSITORY / "examples" / "runs.csv")
    rows = read_runs(path.read_text("utf-8"), path.name)
    assert len({row.label for row in rows}) == len(rows) >= 4
    assert all(row.options["model"] and row.measured_ms > 0 for row in rows)


def test_limits_are_allowed() -> None:
    """From 0.001 ms to 1e9 ms, rounded by at most all of it, with 4,000 characters of notes."""
    long = "n" * 4001
    table = f"measured_ms, rounding_ms, note\n0.001, 0.001,{long}\n1e9, 0,\n"
    assert [row[2:] for row in read_runs(table, "a table")] == [
        (0.001, 0.001, long[:4000]), (1e9, 0.0, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("measured_ms,rounding_ms\n2,2.1\n", "run 1: rounding_ms must be a number from 0"),
        ("measured_ms,rounding_ms\n2,-0.1\n", "got '-0.1'"),
        ("measured_ms,rounding_ms\n2,x\n", "got 'x'"),
        ("measured_ms\n1000000001\n", "from 0.001 to 1e+09"),
        ("measured_ms\n0.000999\n", "from 0.001 to 1e+09"),
        ("", "has no column measured_ms; it has none"),
        ("# nothing but a remark\n", "it has none"),
        ("tp,time\n2,3\n", "has no column measured_ms; it has tp, time"),
        ("tp;measured_ms\n2;3\n", "has no column measured_ms; it has tp;measured_ms"),
        ("tp,measured_ms\n2\n", "Run 1 of a table has another number of cells"),
        ("tp,measured_ms\n2,3\n2,3,4\n", "Run 2 of a table has another number of cells"),
        ("tp,measured_ms,tp \n2,3,4\n", "has the column tp twice"),
        ("tp,measured_ms\n2,\n", "Run 1 of a table: measured_ms must be a number"),
        ("tp,measured_ms\n2,fast\n", "got 'fast'"),
        ("tp,measured_ms\n2,nan\n", "got 'nan'"),
        ("tp,measured_ms\n2,inf\n", "got 'inf'"),
        ("tp,measured_ms\n2,0\n", "got '0'"),
        ("tp,measured_ms\n2,-3\n", "got '-3'"),
        ("tp,measured_ms\n2,1e-300\n", "from 0.001 to 1e"),
        ("tp,measured_ms\n2," + "9" * 5000 + "\n", "measured_ms must be a number"),
        ('tp,measured_ms\n"' + "x" * 200_000 + '",3\n', "is no table of commas"),
    ],
)
def test_bad_tables_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_runs(text, "a table")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


def test_more_runs_than_anyone_has_are_refused() -> None:
    assert len(read_runs("measured_ms\n" + "1\n" * MOST_RUNS, "a table")) == MOST_RUNS
    with pytest.raises(InputError, match="more than 10,000 runs"):
        read_runs("measured_ms\n" + "1\n" * (MOST_RUNS + 1), "a table")


def test_times_are_numbers_of_milliseconds() -> None:
    assert checked_ms("1.5e3", "a log") == 1500.0
    with pytest.raises(InputError, match="a log: measured_ms must be a number from"):
        checked_ms("1,500", "a log")
