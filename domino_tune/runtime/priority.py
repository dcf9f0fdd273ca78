"""Real-time priority for communication threads on a core that they share with compute.

On CPU, threads of gloo and of the lanes move a rank's collectives; they sleep most of the time. An
ordinary scheduler lets a thread that wakes up wait for the computing one, up to a tick (4 ms): a
collective of 0.3 ms then takes 3 ms. Threads of real-time priority run at once, as NCCL's kernels
do on their high-priority stream. They use little of a core, so no thread starves.

They take turns (SCHED_RR): gloo's thread of sockets spins, by epoll, while another thread holds the
lock of a connection. Without turns it would never leave the core to that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LEAST: Final = 1


@contextmanager
def for_new_threads() -> Iterator[bool]:
    """Give real-time priority to threads started inside, then restore the calling thread's own.

    Yield whether the system allowed it: root may do it, other users within their limit on real-time
    priority (``ulimit -r``).
    """
    before = _become_urgent()
    try:
        yield before is not None
    finally:
        if before is not None:
            os.sched_setscheduler(0, *before)


def may_be_urgent() -> bool:
    """Return whether this thread may take real-time priority; try it and undo it."""
    with for_new_threads() as urgent:
        return urgent


def _become_urgent() -> tuple[int, os.sched_param] | None:
    """Take real-time priority. Return the policy before, or None where it is not allowed."""
    if not hasattr(os, "sched_setscheduler"):
        return None
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LEAST))
    except PermissionError:
        return None
    return before
