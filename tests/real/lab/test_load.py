"""What loads measure: memory and its limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab.load.loads import growth
from lab.load.memory import limited


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
