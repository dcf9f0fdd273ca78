"""Compile the failing disk, and let one process live with it."""

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
MISSING = "no C compiler for Linux; apt-get install gcc libc6-dev"


FAULTS: dict[str, tuple[int, bool]] = {
    "fails once": (errno.EIO, False),
    "stays full": (errno.ENOSPC, True),
}
"""The error of a call, and whether all calls after it fail too."""


def make_library(folder: Path) -> Path:
    """Compile the library. Skip if that is impossible."""
    made = folder / "failing_disk.so"
    program = shutil.which("gcc") or shutil.which("cc")
    if program is None or sys.platform != "linux":
        pytest.skip(MISSING)
    options = ["-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([program, *options, "-o", made, SOURCE, "-ldl"], check=True)
    return made


def fail_each_call(
    library: Path, folder: Path, error: int, lasting: bool, stride: int = 1
) -> dict[str, int]:
    """Return how many calls ``failed`` and how many steps were ``refused``; see
    ``failing_disk.py``.

    Raise AssertionError if a database was half-changed, or a job could not continue.
    """
    module = "tests.real.domino_tune.service.failing_disk"
    arguments = [str(folder), str(error), str(int(lasting)), str(stride)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = json.loads(done.stdout)
    return counts
