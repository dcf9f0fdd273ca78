"""Pace: duration and CTAs of an emulated collective, and how its bytes are split to keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from domino_tune.runtime.lanes.call import Call

ELEMENT_BYTES: Final = 4
MOVED_PER_BYTE: Final = 3
"""Bytes through HBM for each byte of a collective: two reads and a write, as in a reduction."""
BLOCKS: Final = (16_384, 4_096, 1_024)
"""Elements that a CTA moves between reads of the clock; the largest with enough reads is taken."""
LEAST_CHUNKS: Final = 4


class Pace(NamedTuple):
    """Duration and CTAs of a collective that nothing slows. On CPU ``ctas`` has no effect."""

    duration_ns: int
    ctas: int = 1


PaceOf = Callable[[Call], Pace]
"""Maps a collective to its pace."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The split of one collective's bytes: ``count`` chunks of ``block`` elements for each CTA, at
    most one every ``chunk_ns``."""

    block: int
    count: int
    chunk_ns: int

    @classmethod
    def of(cls, moved_bytes: int, pace: Pace) -> Chunks:
        """Return the split of ``moved_bytes``, the total through HBM."""
        elements = max(1, moved_bytes // (MOVED_PER_BYTE * ELEMENT_BYTES * pace.ctas))
        block = next((b for b in BLOCKS if elements >= LEAST_CHUNKS * b), BLOCKS[-1])
        count = max(1, round(elements / block))
        return cls(block=block, count=count, chunk_ns=max(1, pace.duration_ns // count))
