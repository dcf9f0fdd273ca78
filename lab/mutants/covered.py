"""Which tests run a line of code: found with coverage.py. Each test is a context; what is run by
processes that it starts has the test's file for its context, since tests of a file share servers.
As a plugin of pytest this names the contexts, and writes what each test took."""

from __future__ import annotations

import ast
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import coverage
import pytest

DATA: Final = ".coverage"
SECONDS: Final = ".seconds.json"
OF_CHILDREN: Final = "TEST_FILE"
SETTINGS: Final = f"""
[run]
context = ${{{{{OF_CHILDREN}-}}}}
data_file = {{data}}
parallel = True
patch = _exit
relative_files = True
source = {{folders}}
"""
MOST_S: Final = 30.0
"""Tests that take this long together are tried before those that are near by their imports."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the context after a test, its fixtures included; note what it takes."""
    running = coverage.Coverage.current()
    os.environ[OF_CHILDREN] = item.nodeid.partition("::")[0]
    begun_s = time.perf_counter()
    if running:
        running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if running:
            running.switch_context("")
        item.config.stash.setdefault(_SECONDS, {})[item.nodeid] = time.perf_counter() - begun_s


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what each test took into the folder of the tests."""
    seconds = session.config.stash.get(_SECONDS, {})
    (session.config.rootpath / SECONDS).write_text(json.dumps(seconds), "utf-8")


_SECONDS: Final = pytest.StashKey[dict[str, float]]()


def statement_lines(source: str, line: int) -> range:
    """Return the lines of the innermost statement at ``line``; of one with a body its beginning."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            if line < end:  # ast.walk goes from the outside to the inside
                found = range(node.lineno, end)
    return found


@dataclass
class Covering:
    """Tests by the lines that they run. Without any ``folders`` of what was traced, no line has
    tests."""

    _tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Covering:
        """Return what the tests have run whose traces are in ``folders``."""
        found = cls()
        for folder in folders:
            found._seconds.update(json.loads((folder / SECONDS).read_text("utf-8")))
            for file in sorted(folder.glob(f"{DATA}.*")):
                data = coverage.CoverageData(str(file))
                data.read()
                for path in data.measured_files():
                    lines = found._tests.setdefault(path, defaultdict(set))
                    for line, contexts in data.contexts_by_lineno(path).items():
                        lines[line].update(filter(None, contexts))
        return found

    def tests(self, path: str, source: str, line: int) -> list[str]:
        """Return tests that run the statement at a line, the fastest first, as many as take
        MOST_S together. What runs at an import belongs to no test."""
        found = self._contexts(path, source, line) & {*self._seconds}
        chosen, left_s = [], MOST_S
        for test in sorted(found, key=lambda test: (self._seconds[test], test)):
            left_s -= self._seconds[test]
            if left_s < 0:
                break
            chosen.append(test)
        return chosen

    def first(self, files: Sequence[str], path: str, source: str, line: int) -> list[str]:
        """Return ``files`` of tests, first those of which a test or what it starts runs a line."""
        running = {one.partition("::")[0] for one in self._contexts(path, source, line)}
        return sorted(files, key=lambda file: file not in running)

    def _contexts(self, path: str, source: str, line: int) -> set[str]:
        lines = self._tests.get(path, {})
        return {test for one in statement_lines(source, line) for test in lines.get(one, ())}
