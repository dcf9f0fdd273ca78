"""The rule of the unit ring: no process, no socket, no sleep, no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from domino_tune.base import cores
from domino_tune.verbs import advice
from tests.support.processes import PATIENCE_S

FORBIDDEN: Final = {
    "subprocess.Popen": "starts a process", "os.fork": "starts a process",
    "os.posix_spawn": "starts a process", "socket.connect": "connects", "socket.bind": "listens",
    "time.sleep": "sleeps",
}  # fmt: skip
"""Audit events that no unit test may cause."""
_caused: list[str] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _caused is None:
        return
    if event in FORBIDDEN:
        _refuse(f"{FORBIDDEN[event]} ({event}{arguments!r:.200})")
    elif event == "import" and arguments[0] == "torch":
        _refuse("imports torch")


def _refuse(what: str) -> None:
    assert _caused is not None
    _caused.append(what)
    raise RuntimeError(f"A unit test {what}; move it to tests/real.")


sys.addaudithook(_listen)


@pytest.fixture(scope="module", autouse=True)
def only_this_process() -> Iterator[None]:
    """Fail a test that leaves its process, also where the code under test hides that."""
    global _caused
    _caused = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cores, "_cores", lambda: 1)
        patched.setattr(advice, "ADVICE_S", PATIENCE_S)  # a slow machine gives the same advice
        yield
    caused, _caused = _caused, None
    assert caused == []
