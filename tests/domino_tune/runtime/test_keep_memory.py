"""Freed memory stays with the process: blocks below 32 MiB, from a process of its own."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from domino_tune.runtime.keep_memory import keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from domino_tune.runtime.keep_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def use(size):
    blocks = [libc.malloc(size) for _ in range(5)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)

use(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use(16 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Page faults of using five blocks of 16 MiB four times, behind a first time."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_a_block_that_was_freed_is_used_again() -> None:
    assert faults("keep") < 100 < faults("plain")


def test_where_the_c_library_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
