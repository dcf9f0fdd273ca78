"""The n-th write or sync of SQLite fails, for every n: old or new, never half, and it goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SOURCE = Path(__file__).with_name("failing_disk.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler for Linux; apt-get install gcc libc6-dev")
    made = tmp_path_factory.mktemp("library") / "failing_disk.so"
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True
    )
    return made


@pytest.mark.parametrize(
    ("error", "lasting"), [(errno.EIO, 0), (errno.ENOSPC, 1)], ids=["once", "disk-stays-full"]
)
def test_every_call_fails_in_turn(library: Path, tmp_path: Path, error: int, lasting: int) -> None:
    module = "tests.domino_tune.jobs.failing_disk"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, str(tmp_path), str(error), str(lasting)],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    print(told)
    assert told["failed"] > 50
    assert told["refused"] > told["failed"] / 2
