"""What loads measure: memory, its limit, and the processes of a service."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lab.load.loads import growth
from lab.load.memory import limited
from lab.load.process import process_tree, resident_bytes


def test_a_service_has_the_memory_of_a_container() -> None:
    code = "x = bytearray(300 << 20); print(len(x))"
    for limit, succeeds in ((600 << 20, True), (200 << 20, False)):
        with limited(limit) as (before, words):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, check=False, preexec_fn=before
            )
        assert f"{limit >> 20} MiB" in words
        assert (done.returncode == 0) is succeeds, done


def test_growth_ignores_the_warm_up() -> None:
    assert growth([1, 50, 100, 100, 100, 100, 100, 100, 100, 104]) == pytest.approx(0.04)
    assert growth([100]) == 0


def test_descendants_are_found_with_their_memory() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(process_tree(parent.pid)) < 2:
            time.sleep(0.01)
        assert all(resident_bytes(pid) > 0 for pid in process_tree(parent.pid))
        parent.communicate(b"\n")
    assert resident_bytes(parent.pid) == 0
