"""Memory that a process frees: a rank keeps it, a server returns it. Only glibc has the options."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGEST: Final = 2**31 - 1
_LARGEST_MMAP: Final = 32 << 20
"""The largest value that glibc accepts."""
HEAPS: Final = 2
"""Heaps that all threads of a server share."""
MAPPED_BYTES: Final = 128 << 10
"""A server maps each block of this size or more by itself."""


def keep_freed_memory() -> bool:
    """Keep freed blocks of up to 32 MiB for later steps. Return False without glibc.

    By default glibc returns large blocks to the system when they are freed. The next op that
    allocates one may then pay for hundreds of page faults (a GEMM of 3 ms takes 4): times would
    depend on earlier allocations. Frameworks keep device memory in pools for the same reason.
    """
    return _set({_TRIM_THRESHOLD: _LARGEST, _MMAP_THRESHOLD: _LARGEST_MMAP})


def give_freed_memory_back() -> bool:
    """Return large blocks to the system when freed; use HEAPS heaps. Return False without glibc.

    Many threads allocate answers of 100 KiB and more. By default glibc makes a heap for every few
    threads, and after the first large block is freed it takes later ones from these heaps: in ten
    minutes of mixed load a server grew from 170 to 230 MiB, while Python held no more. With these
    options it stays at 120 MiB.
    """
    return _set({_ARENA_MAX: HEAPS, _MMAP_THRESHOLD: MAPPED_BYTES})


def _set(options: Mapping[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    return all(mallopt(option, value) for option, value in options.items())
