"""Starts the service as users do, in a process of its own, with a home of its own; and commands."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from domino_tune.cli.commands import main
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, started, wait_until

if TYPE_CHECKING:
    import httpx

NEEDS = ("fastapi", "uvicorn", "sqlalchemy", "httpx", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A service that answers under ``url``; its data lie in ``home``."""

    url: str
    home: Path
    process: subprocess.Popen[str]

    def log(self) -> str:
        """What it wrote to stderr."""
        return (self.home / "serve.log").read_text()


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process's, with a home, without a token, and as wide as without a terminal."""
    kept = {key: value for key, value in os.environ.items() if key != "DOMINO_TUNE_TOKEN"}
    own = {"DOMINO_TUNE_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    return {**kept, **own, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def command(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command line in this process, which spares a second of imports."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    own = patch.dict(os.environ, environment(home, **more), clear=True)
    with own, redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    said, told = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(words, code, said, told)


def process(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "domino_tune", *words], env=environment(home, **more),
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


@contextmanager
def served(home: Path, *options: str, **more: str) -> Iterator[Served]:
    """A running service, in an environment with ``more``; its group is killed at the end."""
    for package in NEEDS:
        pytest.importorskip(package, reason="pip install 'domino_tune[api,client]'")
    words = [sys.executable, "-m", "domino_tune", "serve", "--port", "0", "--workers", "1"]
    log = home / "serve.log"  # a pipe that nobody reads would fill up with the log of requests
    with (
        log.open("w", encoding="utf-8") as stderr,
        started(
            [*words, *options], env=environment(home, **more), stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        assert process.stdout
        line = process.stdout.readline()
        found = re.fullmatch(r"domino_tune serves (http://\S+) until Ctrl-C\.\n", line)
        assert found, line + log.read_text("utf-8")
        yield Served(url=found[1], home=home, process=process)


def when_free(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Return the first answer other than 503. A service whose machine is busy with other tests says
    so after 20 s, since a person would not wait longer, and did nothing."""

    def answered() -> httpx.Response | None:
        answer = ask()
        return None if answer.status_code == 503 else answer

    found = wait_until(answered)
    assert found
    return found
