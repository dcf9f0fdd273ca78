"""The n-th write or sync of SQLite fails: the state is old or new, never half, and work continues.

This file runs every sixth n; tests/long runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.domino_tune.service import failing


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failing.make_library(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("fault", failing.FAULTS)
def test_calls_fail_in_turn(library: Path, tmp_path: Path, fault: str) -> None:
    counts = failing.fail_each_call(library, tmp_path, *failing.FAULTS[fault], stride=6)
    assert counts["failed"] > 25
    assert counts["refused"] > counts["failed"] / 2
