"""The n-th write or sync of SQLite fails: old or new, never half, and it goes on.

Here for every third n; for every n with ``python -m tests.long.faults.store``.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.real.domino_tune.service import failing


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if failing.compiler() is None:
        pytest.skip(failing.MISSING)
    return failing.make_library(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize(
    ("error", "lasting"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["once", "stays-full"]
)
def test_every_call_fails_in_turn(library: Path, tmp_path: Path, error: int, lasting: bool) -> None:
    counts = failing.fail_each_call(library, tmp_path, error, lasting, stride=3)
    assert counts["failed"] > 50
    assert counts["refused"] > counts["failed"] / 2
