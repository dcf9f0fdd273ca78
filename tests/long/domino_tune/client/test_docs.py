"""docs/client.md: its examples run as they are written, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.conftest import REPOSITORY
from tests.real.domino_tune.serving import Served, environment, served
from tests.support.processes import PATIENCE_S

TEXT: Final = (REPOSITORY / "docs" / "client.md").read_text("utf-8")
PYTHON: Final = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHOWN: Final = (
    r"domino .* \d\.\d+",
    r"(?s)link_bandwidth +iteration_ms +speedup\n.*llama2-7b.*h100-dgx +H100 SXM",
    r"(?s)2 rows\n\d+\.\d% off before, \d\.\d% now\n.*run 1 +274\.1",
)
"""What each of them prints."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("docs")) as running:
        yield running


def run(server: Served, words: list[str]) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(
        words, env=environment(server.home), capture_output=True, text=True, timeout=PATIENCE_S,
        cwd=server.home,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_python_runs(server: Served) -> None:
    for code, shown in zip(PYTHON, SHOWN, strict=True):  # the second lists what the first made
        code = code.replace("http://127.0.0.1:8000", server.url)
        printed = run(server, [sys.executable, "-W", "error", "-c", code])
        assert re.search(shown, printed), printed
        assert "" not in printed.splitlines()


def test_the_command_line_runs(server: Served) -> None:
    found = re.search(r"^python (-m domino_tune tune (?:.*\\\n)*.*)$", TEXT, re.MULTILINE)
    assert found
    words = [sys.executable, *found[1].replace("\\\n", " ").split()]
    words[words.index("https://tuner.example")] = server.url
    done = subprocess.run(
        words, env=environment(server.home), capture_output=True, text=True, timeout=PATIENCE_S,
        cwd=server.home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (server.home / "plan.json").exists()
    assert (server.home / "page.html").exists()
