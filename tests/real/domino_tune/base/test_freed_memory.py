"""Freed memory stays with a rank, and leaves a server; each in a process of its own."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from domino_tune.base.freed_memory import give_freed_memory_back, keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from domino_tune.base.freed_memory import give_freed_memory_back, keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
if sys.argv[1] == "give back":
    assert give_freed_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def use(size):
    blocks = [libc.malloc(size) for _ in range(5)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)

size = int(sys.argv[2])
use(size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, size_bytes: int) -> int:
    """Page faults of using five blocks four times, behind a first time."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how, str(size_bytes)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_a_block_that_was_freed_is_used_again() -> None:
    assert faults("keep", 16 << 20) < 100 < faults("plain", 16 << 20)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_a_block_that_a_server_freed_is_gone() -> None:
    """By default glibc keeps the second block of a size, once it has freed one."""
    pages = 20 * (256 << 10) // os.sysconf("SC_PAGE_SIZE")
    assert faults("plain", 256 << 10) < pages <= faults("give back", 256 << 10)


def test_where_the_c_library_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
    assert not give_freed_memory_back()
