"""Memory that the processes of this machine may use: all of it, or a container's limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def memory_bytes() -> int:
    """Return the physical memory, or the least limit of this process's control groups, bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits()])


def cgroup_limits(root: Path = ROOT, own: Path = OWN) -> Iterator[int]:
    """Yield the memory limits, bytes, of this process's control groups, of either version."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield from _limits(root, group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(root / "memory", group, "memory.limit_in_bytes")


def _limits(root: Path, group: str, name: str) -> Iterator[int]:
    """Yield limits from the group up to the root: a container's own group is often the root."""
    inside = PurePosixPath(group.lstrip("/"))
    for folder in (inside, *inside.parents):
        try:
            text = (root / folder / name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdecimal():  # not "max"
            yield int(text)
