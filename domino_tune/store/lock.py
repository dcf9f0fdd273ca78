"""One writer at a time: a lock beside the file, since the file itself is replaced on each save."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from domino_tune.store.files import check_writable, make_folder, remove_leftovers
from simulator.errors import InputError


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold ``path`` for this process, its folder made and rid of what killed writers left there.

    The lock ends with the process, however that ends. Raises InputError where another process
    holds it, or where ``path`` cannot be written.
    """
    make_folder(path.parent)
    check_writable(path)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{str(path)!r} is being written by another run; wait for it to end, or give "
                "another name."
            ) from None
        remove_leftovers(path)
        yield
    finally:
        os.close(lock)
