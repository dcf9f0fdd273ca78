"""Pace: what an emulated collective takes, and how its bytes are cut to keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

ELEMENT_BYTES: Final = 4
MOVED_PER_BYTE: Final = 3
"""Bytes through HBM for each byte of a collective: two reads and a write, as a reduction does."""
BLOCKS: Final = (16_384, 4_096, 1_024)
"""Elements that a CTA moves between looks at the clock; the largest that gives enough looks."""
LEAST_CHUNKS: Final = 4


class Pace(NamedTuple):
    """What a collective takes when nothing disturbs it. On CPU ``ctas`` says nothing."""

    duration_ns: int
    ctas: int = 1


PaceOf = Callable[[int], Pace]
"""The pace of a collective by its size in bytes."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """How one collective's bytes are cut: ``count`` chunks of ``block`` elements for each CTA, one
    every ``chunk_ns`` at the earliest."""

    block: int
    count: int
    chunk_ns: int

    @classmethod
    def of(cls, moved_bytes: int, pace: Pace) -> Chunks:
        """For ``moved_bytes`` through HBM in all."""
        elements = max(1, moved_bytes // (MOVED_PER_BYTE * ELEMENT_BYTES * pace.ctas))
        block = next((b for b in BLOCKS if elements >= LEAST_CHUNKS * b), BLOCKS[-1])
        count = max(1, round(elements / block))
        return cls(block=block, count=count, chunk_ns=max(1, pace.duration_ns // count))
