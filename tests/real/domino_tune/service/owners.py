"""Start owner processes (``owner.py``) that work on one database."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from tests.conftest import REPOSITORY
from tests.support.processes import started


@dataclass(frozen=True, kw_only=True)
class Worked:
    """Ids of the jobs that owner processes submitted, and of those reported to them as finished,
    once for each report.
    """

    submitted: list[str]
    finished: list[str]


def owner(*arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run an owner; kill it at the end if it is still running."""
    words = [sys.executable, "-W", "error", "-m", "tests.real.domino_tune.service.owner"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return started([*words, *arguments], cwd=REPOSITORY, **pipes)


def work_together(url: str, owners: int, each: int) -> Worked:
    """Let ``owners`` processes submit ``each`` jobs, and finish anybody's jobs until none
    is left.
    """
    with ExitStack() as stack:
        processes = [
            stack.enter_context(owner("work", url, f"owner-{number}", str(each)))
            for number in range(owners)
        ]
        lines = [line for process in processes for line in process.communicate()[0].splitlines()]
        assert [process.returncode for process in processes] == [0] * owners
    reports = [line.split() for line in lines]
    return Worked(
        submitted=[job for what, job in reports if what == "submitted"],
        finished=[job for what, job in reports if what == "finished"],
    )
