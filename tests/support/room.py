"""GPUs with a given amount of recommended memory."""

from __future__ import annotations

from dataclasses import replace

from simulator.case import Case
from simulator.dtypes import GIB
from simulator.profile import Machine


def with_gib(case: Case, gib: float) -> Case:
    """Return ``case`` on GPUs that report this much memory."""
    return _on(case, replace(case.profile.machine, gpu_memory_gib=gib, memory_reported=True))


def with_room(case: Case, sure_bytes: int) -> Case:
    """Return ``case`` on GPUs that recommend peaks up to this many bytes, and no more."""
    large = with_gib(case, 1000.0).memory
    taken = large.total - large.usable_bytes
    about = taken + round(sure_bytes * large.usable_bytes / large.sure_bytes)
    for total in range(about - 8, about + 9):
        changed = with_gib(case, total / GIB)
        if changed.memory.sure_bytes == sure_bytes:
            return changed
    raise AssertionError(sure_bytes)


def _on(case: Case, machine: Machine) -> Case:
    return replace(case, profile=replace(case.profile, machine=machine))
