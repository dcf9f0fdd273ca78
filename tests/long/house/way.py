"""The way of a request: which files of domino_tune its calls enter, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.conftest import REPOSITORY

CALLS_BACK = "base/cores.py"
"""Calls functions that it is given, as ``map`` does, like a library."""
HOME = str(REPOSITORY / "domino_tune") + "/"


class Step(NamedTuple):
    """A call from one file of domino_tune into another, by their paths inside it."""

    caller: str
    callee: str
    function: str


def walked(call: Callable[[], Any]) -> list[Step]:
    """Return every kind of step between two files that happens during ``call``, in order of first
    use.

    A call back through the simulator or a library counts from the nearest frame of domino_tune.
    Module bodies, which run once at an import, do not count.
    """
    steps: dict[Step, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        here = _file(frame)
        if event != "call" or here is None or _imports(frame):
            return
        before = frame.f_back
        while before is not None and _file(before) is None:
            before = before.f_back
        caller = "" if before is None else _file(before) or ""
        if caller != here:
            steps.setdefault(Step(caller, here, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(steps)


def _file(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    if not path.startswith(HOME):
        return None
    file = path.removeprefix(HOME)
    return None if file == CALLS_BACK else file


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module body of ours is running."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _file(frame) is not None:
            return True
        frame = frame.f_back
    return False


def room(file: str) -> str:
    """Return the package, or the loose file, of domino_tune that contains a file."""
    return Path(file).parts[0].removesuffix(".py")
