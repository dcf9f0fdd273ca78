"""An orderly end of a process with gloo groups: no thread may want Python while it finalizes.

A thread of gloo first says that a collective is done, then gives its tensors back, for which torch
takes Python's lock. Where Python finalizes in between, as on a busy machine, CPython ends that
thread within C++ code that may not be unwound, and the process aborts: "terminate called without an
active exception". The same befalls a lane's thread that returns from a collective.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Final, Protocol

THREAD_NAME: Final = "pt_gloo_runloop"
PAUSE_S: Final = 0.02  # longer than Python's switch interval, at which waiting threads wake up
PATIENCE_S: Final = 2.0  # a collective that never ends, after an error, must not keep the process
_TASKS: Final = Path("/proc/self/task")


class Closes(Protocol):
    """What has a thread to end."""

    def close(self) -> None:
        """End the thread."""
        ...


_open: dict[int, Closes] = {}


def end_in_order() -> None:
    """Have gloo's threads waited for before Python finalizes. To call it once more is harmless."""
    atexit.unregister(_end)
    atexit.register(_end)


def closes_at_exit(lane: Closes) -> None:
    """Have ``lane`` closed then, too, unless ``forget`` is called before."""
    _open[id(lane)] = lane
    end_in_order()


def forget(lane: Closes) -> None:
    """Leave a lane out that was closed."""
    _open.pop(id(lane), None)


def settle(patience_s: float = PATIENCE_S) -> None:
    """Return when gloo's threads have nothing to do, or after ``patience_s``.

    This thread sleeps without Python's lock, so a thread that wanted it has moved meanwhile: it is
    awake, or the kernel has counted that it was. On other systems than Linux it only sleeps.
    """
    until = time.monotonic() + patience_s
    before = _threads()
    while time.monotonic() < until:
        time.sleep(PAUSE_S)
        now = _threads()
        if now == before and all("State:\tS" in lines for lines in now.values()):
            return
        before = now


def _end() -> None:
    for lane in list(_open.values()):
        lane.close()
    settle()


def _threads() -> dict[str, tuple[str, ...]]:
    """Return what the kernel says of each of gloo's threads: its state, how often it ran."""
    found = {}
    for task in _TASKS.glob("*"):
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        if lines and lines[0] == f"Name:\t{THREAD_NAME}":
            found[task.name] = tuple(
                line[: len("State:\tS")] if line.startswith("State:") else line
                for line in lines if line.startswith("State:") or "ctxt_switches" in line
            )  # fmt: skip
    return found
