"""A plugin of pytest that writes down each failure when it is known, whatever happens to the run.

``-p lab.gpu.failures --failures-into FILE --failures-case NAME`` appends a JSON line to FILE: the
case, the test, where it failed, and the whole of what pytest says of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


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
        if not report.failed:
            return
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
