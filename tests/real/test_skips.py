"""DOMINO_TUNE_NO_SKIPS=1 turns a skip into a failure, except for a missing GPU or facts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SKIPPED = """
import pytest

def test_allowed_gpu():
    pytest.skip("no GPU: 0 devices")

@pytest.mark.skip(reason="no facts: not here")
def test_allowed_facts():
    pass

def test_not_allowed():
    pytest.skip("too slow")

@pytest.mark.xfail(reason="known")
def test_expected_failure():
    assert False
"""
SKIPPED_MODULE = 'import pytest\npytest.importorskip("no_such_module_anywhere")\n'


def outcome(folder: Path, no_skips: str) -> tuple[int, str]:
    """Run pytest in ``folder`` with our conftest. Return its exit code and last line."""
    conftest = (REPOSITORY / "tests" / "conftest.py").read_text(encoding="utf-8")
    (folder / "conftest.py").write_text(conftest, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={**os.environ, "DOMINO_TUNE_NO_SKIPS": no_skips},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("no_skips", "code", "counts"),
    [("0", 0, "3 skipped, 1 xfailed"), ("1", 1, "1 failed, 2 skipped, 1 xfailed")],
)
def test_skipped_tests(tmp_path: Path, no_skips: str, code: int, counts: str) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPED)
    got, last = outcome(tmp_path, no_skips)
    assert got == code
    assert counts in last


@pytest.mark.parametrize(("no_skips", "counts"), [("0", "1 skipped"), ("1", "1 error")])
def test_skipped_module(tmp_path: Path, no_skips: str, counts: str) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPED_MODULE)
    assert counts in outcome(tmp_path, no_skips)[1]
