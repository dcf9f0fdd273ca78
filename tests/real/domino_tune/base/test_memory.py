"""Freed memory stays with a rank, and leaves a server; each in a process of its own."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from domino_tune.base.memory import give_freed_memory_back, keep_freed_memory

USES = """
import ctypes, sys
from domino_tune.base.memory import give_freed_memory_back, keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
if sys.argv[1] == "give back":
    assert give_freed_memory_back()

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_int) for name in names.split()]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo.restype = Info

size = int(sys.argv[2])
before = libc.mallinfo()
for _ in range(2):  # glibc learns from the first block that is freed
    blocks = [libc.malloc(size) for _ in range(5)]
    mapped = libc.mallinfo().hblks
    for block in blocks:
        libc.free(block)
print(mapped - before.hblks, (libc.mallinfo().arena - before.arena) // size)
"""


def blocks(how: str, size_bytes: int) -> tuple[int, int]:
    """Of five blocks of a size that are used a second time, return how many are mapped by
    themselves, and room for how many glibc's heap keeps when they are freed.

    A block that is mapped by itself goes back to the system when it is freed.
    """
    done = subprocess.run(
        [sys.executable, "-c", USES, how, str(size_bytes)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    mapped, kept = map(int, done.stdout.split())
    return mapped, kept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_a_rank_keeps_large_blocks_and_a_server_none() -> None:
    assert blocks("keep", 16 << 20) == (0, 5)
    assert blocks("give back", 256 << 10) == (5, 0)
    # By default the heap has them too, and gives back what is freed at its end.
    assert blocks("plain", 256 << 10)[0] == 0
    assert blocks("plain", 16 << 20) == (0, 0)


def test_where_the_c_library_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
    assert not give_freed_memory_back()


# Test garbage -------------------------------------------------------------------------------------
# Existing objects are left out of garbage collections; objects that are made later are not.

LATER = """
import gc, weakref
from domino_tune.base.memory import leave_out_what_is_there

class Node:
    pass

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

gone = cycle()
leave_out_what_is_there()
assert gone() is None, "garbage is not kept"
assert gc.get_freeze_count() > 1000
later = cycle()
gc.collect()
assert later() is None
"""


def test_only_what_is_there_is_left_out() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)
