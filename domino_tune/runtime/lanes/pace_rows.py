"""Paces of all collectives of some plans, for lanes that emulate them.

They come from a profile. So an emulated run does not measure how long a collective takes alone,
only how collectives and compute slow each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.cost import CostModel
from simulator.ops import Collective
from simulator.schedule import Schedule

if TYPE_CHECKING:  # imports torch, which only ranks have
    from domino_tune.runtime.lanes.call import Call, Operation

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
