"""Communication before computation on a core that both share.

On CPU, a rank's collectives are moved by threads of gloo's and ours that sleep most of the time. An
ordinary scheduler lets a thread that wakes up wait for the one that computes, up to a tick (4 ms):
a collective of 0.3 ms then takes 3 ms. Threads of real-time priority run at once, as NCCL's kernels
do on their high-priority stream. They use little of a core, so nothing starves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_LEAST: Final = 1


@contextmanager
def for_new_threads() -> Iterator[bool]:
    """Threads started inside get real-time priority; the calling one is as it was afterwards.

    Yields whether the system allowed it: root may, others where their limit on real-time priority
    does (``ulimit -r``).
    """
    if not may_be_urgent():
        yield False
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_LEAST))
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


def may_be_urgent() -> bool:
    """Whether this thread may give itself real-time priority; it is tried, and taken back."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_LEAST))
        os.sched_setscheduler(0, *before)
        return True
    return False
