"""The stage ``tests``: what failed stays written down, though the run is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.gpu import cuda_tests

FILE = """
import time
import pytest

def test_right(): pass

def test_wrong():
    print("the device said this")
    assert [1.0, 2.0] == [1.0, 2.5]

@pytest.fixture
def broken(): raise RuntimeError("no such device")

def test_set_up(broken): pass
"""
HANGS = "\ndef test_that_hangs(): time.sleep(60)\n"


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tests, "PROCESSES", 1)


def rows_of(folder: Path, text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the case's row, and those of failures by what they say."""
    path, into = folder / "test_here.py", folder / "tests.jsonl"
    path.write_text(text)
    row = cuda_tests.tested((str(path),), into, "here")
    written = [json.loads(line) for line in into.read_text().splitlines()]
    return dict(row), sorted(written, key=lambda one: str(one["test"]))


def test_each_failure_has_a_row_with_all_that_is_said(tmp_path: Path) -> None:
    row, failures = rows_of(tmp_path, FILE)
    assert [(one["case"], one["when"]) for one in failures] == [("here", "setup"), ("here", "call")]
    assert "no such device" in failures[0]["said"]
    assert "assert [1.0, 2.0] == [1.0, 2.5]" in failures[1]["said"]
    assert "the device said this" in failures[1]["said"]
    assert sorted(name.rpartition("::")[2] for name in row["failed"]) == [
        "test_set_up", "test_wrong",
    ]  # fmt: skip
    assert "1 failed, 1 passed, 1 error" in row["told"]


def test_failures_are_there_though_the_run_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_tests, "LIMIT_S", 30.0)
    row, failures = rows_of(tmp_path, FILE + HANGS)
    assert row["told"] == "stopped after 30 s"
    assert [one["when"] for one in failures] == ["setup", "call"]


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    _, failures = rows_of(tmp_path, "import no_such_module\n")
    assert {one["when"] for one in failures} == {"collect"}
    assert "no_such_module" in failures[0]["said"]
