"""Stage ``tests``: the tests that need a GPU, several at a time, each folder a case."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
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
SAID: Final = 20_000
"""Characters kept of what failures say."""


def test_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per suite; its row names what failed and keeps what was said."""
    for name, paths in SUITES.items():
        yield GpuCase(name=name, seconds=SECONDS, measure=partial(_tested, paths))


def _tested(paths: tuple[str, ...]) -> Row:
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist", "worksteal", "-rfE",
        "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark", *paths,
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = ran.stdout + ran.stderr[-2000:]
    except subprocess.TimeoutExpired as late:
        said = f"stopped after {LIMIT_S:g} s\n{(late.stdout or b'').decode()}"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    return {"failed": failed, "said": said[-SAID:], "told": last}
