"""The memory that a deployment gives to a service, for a service without a container."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

DEPLOYED_BYTES: Final = 2 << 30
"""`mem_limit` of the API in deploy/compose.yaml."""
UNIFIED: Final = Path("/sys/fs/cgroup")
V1: Final = UNIFIED / "memory"


@contextmanager
def limited(limit_bytes: int) -> Iterator[tuple[Callable[[], None], str]]:
    """Yield a function that a child calls before it becomes the service, and the limit in words.

    A control group holds the service and its workers together, as a container's does; where none
    may be made, each process alone has the limit.
    """
    group = _group(limit_bytes)
    if group is None:
        yield (
            lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes)),
            (f"{limit_bytes >> 20:,} MiB a process (no control group may be made here)"),
        )
        return
    try:
        yield lambda: _join(group), f"{limit_bytes >> 20:,} MiB together, by a control group"
    finally:
        with suppress(OSError):  # a process of it is still ending
            group.rmdir()


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _group(limit_bytes: int) -> Path | None:
    """Return a new control group with the limit, of version 1 or 2; None where that is denied."""
    old = (V1 / "memory.limit_in_bytes").exists()
    home, name = (V1, "memory.limit_in_bytes") if old else (UNIFIED, "memory.max")
    group = home / f"domino_tune-{secrets.token_hex(4)}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / name).write_text(str(limit_bytes))
    except OSError:
        group.rmdir()
        return None
    return group
