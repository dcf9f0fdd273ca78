"""What becomes of memory that a process frees: a rank keeps it, a server gives it back. glibc alone
can be asked."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGEST: Final = 2**31 - 1
_LARGEST_MMAP: Final = 32 << 20
"""glibc refuses more."""
HEAPS: Final = 2
MAPPED_BYTES: Final = 128 << 10
"""Blocks from this size on are mapped one by one in a server."""


def keep_freed_memory() -> bool:
    """Keep what a step frees for the next one; but for blocks of more than 32 MiB. False where the
    C library cannot be asked.

    By default glibc gives large blocks back to the system when they are freed. The next op that
    allocates one then pays for hundreds of page faults (a GEMM of 3 ms takes 4), or does not,
    depending on what was allocated before: times would hang on history. Frameworks keep device
    memory in pools for the same reason.
    """
    return _set({_TRIM_THRESHOLD: _LARGEST, _MMAP_THRESHOLD: _LARGEST_MMAP})


def give_freed_memory_back() -> bool:
    """Give large blocks back as soon as they are freed, and share two heaps between all threads.
    False where the C library cannot be asked.

    Answers of a hundred KiB and more come and go on many threads. By default glibc gives every few
    threads a heap of their own, and behind the first large block that was freed takes the next ones
    from these heaps too: in ten minutes of mixed load a server grew from 170 to 230 MiB, though
    Python held no more. So it stays at 120.
    """
    return _set({_ARENA_MAX: HEAPS, _MMAP_THRESHOLD: MAPPED_BYTES})


def _set(options: Mapping[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    return all(mallopt(option, value) for option, value in options.items())
