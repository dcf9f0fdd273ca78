"""Who is alive, who is stuck, who failed first: what the parent knows of its ranks."""

from __future__ import annotations

import mmap
import signal
import time
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 25
STACKS: Final = "Where each thread is, innermost call first:"
"""Written above the stacks that a rank dumps when asked to."""
_BEAT, _FAILED, _SLOTS = 0, 1, 2


class Heartbeats:
    """Two times a rank, CLOCK_MONOTONIC ns, in a file mapped by all: last progress, and failure.

    The clock is one for all processes of a machine, so times of different ranks compare.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        """Map ``path``; make it, all ranks beating now, if it is not there."""
        size = ranks * _SLOTS * 8
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._times = memoryview(self._map).cast("q")
        self.ranks = ranks

    def beat(self, rank: int) -> None:
        """``rank`` makes progress."""
        self._times[rank * _SLOTS + _BEAT] = time.monotonic_ns()

    def fail(self, rank: int) -> None:
        """``rank`` met an error and is about to end. Said before its sockets close, so that what
        this brings about on other ranks comes later."""
        self._times[rank * _SLOTS + _FAILED] = time.monotonic_ns()

    def last_beat_ns(self, rank: int) -> int:
        """Time of the last progress; 0 before the first."""
        return self._times[rank * _SLOTS + _BEAT]

    def failed_ns(self, rank: int) -> int:
        """Time of the error; 0 without one, which is so for a rank that was killed."""
        return self._times[rank * _SLOTS + _FAILED]

    def close(self) -> None:
        """Unmap."""
        self._times.release()
        self._map.close()


def first_to_die(exit_codes: dict[int, int], beats: Heartbeats) -> int:
    """The rank behind the failure: a killed one (others only felt it), else the first to fail."""
    return min(exit_codes, key=lambda rank: (beats.failed_ns(rank), rank))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, debugger); False where /proc cannot tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "tT"


def how_it_ended(exit_code: int) -> str:
    """``ended with exit code 3``, ``was killed by SIGKILL``: negative codes are signals."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    memory = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"


def tail(path: Path) -> str:
    """The last lines of a rank's stderr."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    kept = [line.rstrip() for line in lines[-TAIL_LINES:]]
    return "\n".join(["The end of its stderr:", *kept]) if kept else "Its stderr is empty."


def waits_for_others(stderr: Path) -> bool:
    """Whether the stacks at the end of a rank's stderr say that its main thread is in a collective
    or waits for one: such a rank is held up by another."""
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    threads = text.rpartition(f"{STACKS}\n")[2].split("\n\n")
    main = next((stack for stack in threads if "_run_module_as_main" in stack), "")
    return any(place in main for place in ("distributed_c10d.py", "runtime/lanes.py"))
