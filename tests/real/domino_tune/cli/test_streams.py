"""Full, closed and narrow streams, and signals: never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f"exec {sys.executable} -m domino_tune"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a shell, for its redirections."""
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@pytest.mark.parametrize("place", [pytest.param("> /dev/full", marks=FULL), ">&-"])
def test_stdout_that_takes_nothing(place: str) -> None:
    done = shell(f"{COMMAND} models --json {place}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Cannot write the output: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("place", [pytest.param("2> /dev/full", marks=FULL), "2>&-"])
def test_stderr_that_takes_nothing(place: str) -> None:
    done = shell(f"{COMMAND} simulate --model nothing {place}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_stdout_in_ascii() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment in (plain, {"PYTHONIOENCODING": "ascii"}):
        done = shell(
            f"{COMMAND} simulate --model gpt3-13b --profile h100-dgx --tp 8 --seq-length 1024 "
            "--micro-batch-size 16",
            **environment,
        )
        assert done.returncode == 0
        assert done.stdout.isascii()
        assert "Traceback" not in done.stderr


INTERRUPTED_IMPORT = """
import signal, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            try:
                exec("signal.raise_signal(signal.SIGINT)")
            except KeyboardInterrupt:
                raise {error}

from domino_tune.__main__ import main
sys.meta_path.insert(0, Interrupt)
sys.exit(main(["models"]))
"""


@pytest.mark.parametrize("name", ["domino_tune.cli.commands", "typer", "domino_tune.verbs.models"])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ImportError('broken') from None"])
def test_interrupted_while_importing(name: str, error: str) -> None:
    code = INTERRUPTED_IMPORT.format(name=name, error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted.\n")
