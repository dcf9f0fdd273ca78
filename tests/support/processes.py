"""Processes of this machine (Linux): whether they run, their children, and waits for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

PATIENCE_S: Final = 900
"""Limit of waits that only guard against hanging: loaded machines take long."""
T = TypeVar("T")


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a group of its own. When the block ends, end the group, however it ends.

    ``options`` are Popen's; streams are text.
    """
    options = {"text": True, "start_new_session": True, **options}
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # nobody of the group is left
                os.killpg(process.pid, signal.SIGKILL)


def reserved_port() -> int:
    """Return a TCP port that the system gives to nobody who asks for any port.

    It had a connection, which ended here and lingers in TIME_WAIT; a server that names the port and
    sets SO_REUSEADDR, as all do, can still bind it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address: tuple[str, int] = server.getsockname()
        with socket.create_connection(address):
            server.accept()[0].close()
    return address[1]


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_tree(pid: int) -> Sequence[int]:
    """Return ``pid`` and its descendants now (Linux)."""
    found = [pid]
    for parent in found:
        found += child_pids(parent)
    return found


def child_pids(pid: int) -> list[int]:
    """Return the process ids of the children of ``pid`` now (Linux); none when it has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the task has ended
            found += map(int, task.read_text().split())
    return found


def children(pid: int, command: bytes = b"") -> list[int]:
    """Return the ids of the children of ``pid`` whose command line contains ``command``."""
    found = []
    for child in child_pids(pid):
        with suppress(OSError):  # it has ended
            if command in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def descendants(pid: int, command: bytes) -> list[int]:
    """Return the ids of the descendants of ``pid`` whose command line contains ``command``."""
    return [child for parent in process_tree(pid) for child in children(parent, command)]


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """Wait until ``condition`` returns a true value, and return it. Fail after ``timeout_s``."""
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"the condition does not hold after {timeout_s:g} s"
        time.sleep(0.05)
    return found


def wait_until_gone(pids: Collection[int]) -> None:
    """Wait until no process runs. Fail after PATIENCE_S."""
    wait_until(lambda: not any(map(is_alive, pids)))
