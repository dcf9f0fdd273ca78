"""Stage ``tests``: the tests that need a GPU, several at a time, each folder a case.

A test that fails has a row of its own, which is on disk before the next test has ended: the case's
row comes last, and not at all where the time of a lent GPU is up.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from lab.gpu.stage import GpuCase, Row, Stage

SUITES: Final = {
    "runtime": (
        "tests/real/domino_tune/runtime/test_cuda.py",
        "tests/real/domino_tune/runtime/test_cuda_jobs.py",
        "tests/real/domino_tune/runtime/ops/test_cuda_pointwise.py",
    ),
    "measure": ("tests/real/domino_tune/measure/gpu/test_on_a_gpu.py",),
    "stages": ("tests/real/lab/gpu/test_on_a_gpu.py",),
}
PROCESSES: Final = 6
LIMIT_S: Final = 150.0
SECONDS: Final = 60.0
SAID: Final = 2_000
"""Characters kept of what the run says at its end."""


def test_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per suite; its row names what failed."""
    for name, paths in SUITES.items():
        measure = partial(tested, paths, stage.rows_file, name)
        yield GpuCase(name=name, seconds=SECONDS, measure=measure)


def tested(paths: tuple[str, ...], rows_file: Path, case: str) -> Row:
    """Run the tests of ``paths``; write failures to ``rows_file``. Return the row of ``case``."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist", "worksteal", "-rfE",
        "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "lab.gpu.failures",
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
