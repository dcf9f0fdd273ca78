"""An orderly end: gloo's threads are waited for, lanes are closed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from domino_tune.runtime.lanes.ending import PATIENCE_S, THREAD_NAME, settle
from tests.conftest import REPOSITORY

PR_SET_NAME = 15
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts are Linux's")


def named_as_gloos(work: Callable[[], object]) -> threading.Thread:
    """Start a thread that the kernel knows under the name of gloo's."""
    named = threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, THREAD_NAME.encode())
        named.set()
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    named.wait()
    return thread


@on_linux
def test_a_thread_at_work_is_waited_for() -> None:
    done, stop = threading.Event(), threading.Event()

    def work() -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        done.set()
        stop.wait()

    thread = named_as_gloos(work)
    settle()
    assert done.is_set()
    stop.set()
    thread.join()


@on_linux
def test_a_thread_that_never_rests_is_not_waited_for_beyond_patience() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pass

    thread = named_as_gloos(work)
    settle(patience_s=0.2)
    assert thread.is_alive()
    stop.set()
    thread.join()


def test_lanes_are_closed_when_a_process_ends() -> None:
    """Also one whose collective never ends, as after an error on another rank."""
    script = (
        "import atexit, threading, torch\n"
        "from domino_tune.runtime.lanes.call import all_reduce\n"
        "from domino_tune.runtime.lanes.lane import HostLane\n"
        "atexit.register(lambda: print([t.name for t in threading.enumerate()]))\n"
        "lane = HostLane('idle', lambda call: None)\n"
        "lane.issue('x', all_reduce(torch.ones(1))).wait()\n"
        "never = threading.Event()\n"
        "HostLane('stuck', lambda call: never.wait()).issue('x', all_reduce(torch.ones(1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        cwd=REPOSITORY, timeout=60 + PATIENCE_S,
    )  # fmt: skip
    assert ended.stdout.strip() == "['MainThread', 'comm-stuck']"
