"""Memory that a step frees stays with the process, for the next step to use; but for blocks of
more than 32 MiB, which glibc gives back whatever it is asked.

By default glibc gives large blocks back to the system when they are freed. The next op that
allocates one then pays for hundreds of page faults (a GEMM of 3 ms takes 4), or does not, depending
on what was allocated before: times would hang on history. Frameworks keep device memory in pools
for the same reason.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 2**31 - 1
_LARGEST_MMAP: Final = 32 << 20
"""glibc refuses more."""


def keep_freed_memory() -> bool:
    """Ask the C library of this process; False where it cannot be asked."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP))
