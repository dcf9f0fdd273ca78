"""Starts owner processes (``owner.py``), with these arguments."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import REPOSITORY


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.domino_tune.jobs.owner", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
