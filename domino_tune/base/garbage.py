"""Fewer and shorter garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLD: Final = 5_000_000
"""Objects that are made before the collector looks for cycles."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles rarely. A search makes millions of small tuples, none of them in cycles;
    looking through them takes a quarter of its time."""
    before = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def leave_out_what_is_there() -> None:
    """Leave what there is now, imports above all, out of all collections to come.

    It stays as long as the process, and going through it for cycles stopped a worker for 30 ms in
    every third what-if.
    """
    gc.collect()
    gc.freeze()
