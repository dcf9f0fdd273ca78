"""Every load runs for seconds against a real service without errors. Times are not checked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.load import mixed
from lab.load.loads import LOADS, Duration, run
from lab.load.memory import limited
from lab.load.process import process_tree, resident_bytes

BRIEF = Duration(each_s=1.0, mixed_s=6.0)


LATE = ("takes longer than", "did not answer in")
"""What a service says with 503 on a machine that is busy with other tests."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOADS)
def test_load_runs_without_errors(name: str, tmp_path: Path) -> None:
    table = run(name, tmp_path, BRIEF)
    counts = {row[0]: row[2] for row in table.rows}
    late = [one for one in table.notes if "503" in one and any(said in one for said in LATE)]
    assert counts["errors"] == str(len(late)), table.notes
    assert counts["exit code after SIGTERM"] == "0"


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
    assert mixed.growth([1, 50, 100, 100, 100, 100, 100, 100, 100, 104]) == pytest.approx(0.04)
    assert mixed.growth([100]) == 0


def test_descendants_are_found_with_their_memory() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(process_tree(parent.pid)) < 2:
            time.sleep(0.01)
        assert all(resident_bytes(pid) > 0 for pid in process_tree(parent.pid))
        parent.communicate(b"\n")
    assert resident_bytes(parent.pid) == 0
