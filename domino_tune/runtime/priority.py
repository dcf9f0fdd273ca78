"""Communication before computation on a core that both share.

On CPU, a rank's collectives are moved by threads of gloo's and ours that sleep most of the time. An
ordinary scheduler lets a thread that wakes up wait for the one that computes, up to a tick (4 ms):
a collective of 0.3 ms then takes 3 ms. Threads of real-time priority run at once, as NCCL's kernels
do on their high-priority stream. They use little of a core, so nothing starves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LEAST: Final = 1


@contextmanager
def for_new_threads() -> Iterator[bool]:
    """Threads started inside get real-time priority; the calling one is as it was afterwards.

    Yields whether the system allowed it: root may, others where their limit on real-time priority
    does (``ulimit -r``).
    """
    before = _become_urgent()
    try:
        yield before is not None
    finally:
        if before is not None:
            os.sched_setscheduler(0, *before)


def may_be_urgent() -> bool:
    """Whether this thread may give itself real-time priority; it is tried, and taken back."""
    with for_new_threads() as urgent:
        return urgent


def _become_urgent() -> tuple[int, os.sched_param] | None:
    """Take real-time priority; what was before, or None where it is not allowed."""
    if not hasattr(os, "sched_setscheduler"):
        return None
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_LEAST))
    except PermissionError:
        return None
    return before
