"""The parent's view of its ranks: which are alive, which are stuck, which failed first."""

from __future__ import annotations

import mmap
import signal
import time
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 25
STACKS: Final = "Where each thread is, innermost call first:"
"""Written above the stacks that a rank dumps on request."""
_BEAT, _FAILED, _SLOTS = 0, 1, 2


class Heartbeats:
    """Two times per rank, CLOCK_MONOTONIC ns, in a file that all map: last progress, and failure.

    All processes of a machine share the clock, so times of different ranks can be compared.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        """Map ``path``; create it first, with all times 0, if it does not exist."""
        size = ranks * _SLOTS * 8
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._times = memoryview(self._map).cast("q")
        self.ranks = ranks

    def beat(self, rank: int) -> None:
        """Record progress of ``rank``."""
        self._times[rank * _SLOTS + _BEAT] = time.monotonic_ns()

    def fail(self, rank: int) -> None:
        """Record that ``rank`` met an error and is about to end. Must precede the closing of its
        sockets, so that the failures this causes on other ranks are later."""
        self._times[rank * _SLOTS + _FAILED] = time.monotonic_ns()

    def last_beat_ns(self, rank: int) -> int:
        """Return the time of the last progress, ns; 0 before the first."""
        return self._times[rank * _SLOTS + _BEAT]

    def failed_ns(self, rank: int) -> int:
        """Return the time of the error, ns; 0 without one, as of a rank that was killed."""
        return self._times[rank * _SLOTS + _FAILED]

    def close(self) -> None:
        """Unmap the file."""
        self._times.release()
        self._map.close()


def first_to_die(exit_codes: dict[int, int], beats: Heartbeats) -> int:
    """Return the rank that caused the failure: a killed one, else the first to fail."""
    return min(exit_codes, key=lambda rank: (beats.failed_ns(rank), rank))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, debugger); False where /proc is missing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "tT"


def how_it_ended(exit_code: int) -> str:
    """Return ``ended with exit code 3``, or ``was killed by SIGKILL`` for a negative code."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    memory = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"


def tail(path: Path) -> str:
    """Return the last lines of a rank's stderr."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    last = [line.rstrip() for line in lines[-TAIL_LINES:]]
    return "\n".join(["The end of its stderr:", *last]) if last else "Its stderr is empty."


def waits_for_others(stderr: Path) -> bool:
    """Return whether the stacks at the end of a rank's stderr show its main thread in a collective
    or waiting for one: then another rank holds it up."""
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    threads = text.rpartition(f"{STACKS}\n")[2].split("\n\n")
    main = next((stack for stack in threads if "_run_module_as_main" in stack), "")
    return any(place in main for place in ("distributed_c10d.py", "runtime/lanes/lane.py"))
