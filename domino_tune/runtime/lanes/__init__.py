"""Lanes: queues of collectives. May import clock, launch_spec and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.ops import Collective

if TYPE_CHECKING:
    from domino_tune.runtime.lanes.lane import Call, Operation
    from simulator.cost import CostModel
    from simulator.schedule import Schedule


# Pace ---------------------------------------------------------------------------------------------
# Duration and CTAs of an emulated collective, and how its bytes are split to keep it.

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


PaceOf = Callable[["Call"], Pace]
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


# Paces of all collectives of some plans, for lanes that emulate them ------------------------------
# They come from a profile. So an emulated run does not measure how long a collective takes alone,
# only how collectives and compute slow each other.

RESHAPES: Final[dict[str, Operation]] = {"all_gather": "gather", "reduce_scatter": "scatter"}


def reshapes(call: Call) -> str:
    """Return the row's ``reshapes`` of ``call``."""
    return call.operation if call.operation in RESHAPES.values() else ""


class PaceRow(NamedTuple):
    """``duration_ns`` and ``ctas`` of a collective of ``size_bytes`` on a lane, in plans whose
    ``comm_ctas`` is ``plan_ctas`` (0: NCCL's choice). ``reshapes``: its operation where its target
    is another tensor than its source, else an empty text."""

    lane: int
    plan_ctas: int
    reshapes: str
    size_bytes: int
    duration_ns: int
    ctas: int


def paces_of(cost: CostModel, schedules: Iterable[tuple[int, Schedule]]) -> list[PaceRow]:
    """Return one row for each collective of the (plan's CTA count, schedule) pairs, sorted."""
    default = cost.contention.fit.default_ctas if cost.contention.fit else 1
    found = set()
    for plan_ctas, schedule in schedules:
        for op in schedule.ops():
            signature = op.signature
            if isinstance(signature, Collective):
                duration_ns, ctas = cost.duration_ns(signature), signature.ctas or default
                reshapes = RESHAPES.get(signature.op, "")
                size = signature.size_bytes
                found.add(PaceRow(op.lane, plan_ctas, reshapes, size, duration_ns, ctas))
    return sorted(found)
