"""Stage ``tests``: the tests that need a GPU, several at a time, each folder a case.

A test that fails has a row of its own, which is on disk before the next test has ended: the case's
row comes last, and not at all where the time of a lent GPU is up. This module is the plugin of
pytest that writes these rows, too: ``-p lab.gpu.cuda_tests --failures-into FILE --failures-case
NAME`` appends JSON lines to FILE: the case, the test, where it failed, and the whole of what pytest
says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

    from lab.gpu.stage import GpuCase, Row, Stage

PROCESSES: Final = 6
LIMIT_S: Final = 150.0
SECONDS: Final = 60.0
SAID: Final = 2_000  # Characters kept of what the run says at its end


def test_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per suite; its row names what failed."""
    from lab.gpu.cases import SHAPES
    from lab.gpu.stage import GpuCase  # with torch, which the plugin need not wait for

    for name, paths in SHAPES["tests"].items():
        yield GpuCase(name, SECONDS, partial(tested, paths, stage.rows_file, name))


def tested(paths: tuple[str, ...], rows_file: Path, case: str) -> Row:
    """Run the tests of ``paths``; write failures to ``rows_file``. Return the row of ``case``."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist", "worksteal", "-rfE",
        "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "lab.gpu.cuda_tests",
        "--failures-into", str(rows_file), "--failures-case", case, *paths,
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = ran.stdout + ran.stderr
    except subprocess.TimeoutExpired as late:
        said = f"{(late.stdout or b'').decode()}\nstopped after {LIMIT_S:g} s"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    return {"failed": failed, "said": said[-SAID:], "told": last}


class Failures:
    """Appends failures to ``path``, as rows of ``case``; each is on disk before the next test."""

    def __init__(self, path: Path, case: str) -> None:
        self._path, self._case = path, case

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear of a test's setup, call or end, in whichever process it ran."""
        self._write(report, report.when)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Hear of a file that was read."""
        self._write(report, "collect")

    def _write(self, report: pytest.TestReport | pytest.CollectReport, when: str | None) -> None:
        if report.failed:
            said = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
            row = {"case": self._case, "test": report.nodeid, "when": when, "said": said}
            with self._path.open("ab") as file:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add where failures are written."""
    parser.addoption("--failures-into", type=Path, required=True)
    parser.addoption("--failures-case", required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Listen in the process that hears of all tests; workers tell it of theirs."""
    if not hasattr(config, "workerinput"):
        where: Path = config.getoption("--failures-into")
        config.pluginmanager.register(Failures(where, config.getoption("--failures-case")))
