"""Memory of a process: what it frees is kept or returned, and garbage is collected less often."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


# Fewer and shorter garbage collections ------------------------------------------------------------

THRESHOLD: Final = 5_000_000
"""Objects that are made before the collector looks for cycles."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles rarely, and afterwards only in what is made then. A search makes millions of
    small tuples, none of them in cycles; looking through them takes a quarter of its time."""
    before = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *before[1:])
    try:
        yield
    finally:
        freeze()
        gc.set_threshold(*before)


def freeze() -> None:
    """Leave what there is out of all collections to come, the last one among them; but nothing
    where Triton is loaded, which would call what stays a leak."""
    if "triton" not in sys.modules:
        gc.freeze()


def leave_out_what_is_there() -> None:
    """Leave what there is now, imports above all, out of all collections to come.

    It stays as long as the process, and going through it for cycles stopped a worker for 30 ms in
    every third what-if.
    """
    gc.collect()
    freeze()
