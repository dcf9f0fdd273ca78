"""Paces: what every collective of some plans takes, for lanes that emulate them.

They come from a profile. So what a collective takes alone goes into an emulated run; only how it
and compute disturb each other comes out of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.cost import CostModel
from simulator.ops import Collective
from simulator.schedule import Schedule


class PaceRow(NamedTuple):
    """``duration_ns`` of a collective of ``size_bytes`` on a lane, for plans that ask for ``asked``
    CTAs (0: NCCL's choice), and the ``ctas`` it then holds."""

    lane: int
    asked: int
    size_bytes: int
    duration_ns: int
    ctas: int


def paces_of(cost: CostModel, schedules: Iterable[tuple[int, Schedule]]) -> list[PaceRow]:
    """A row for each collective of (CTAs asked for, schedule) pairs, each once, in order."""
    default = cost.contention.fit.default_ctas if cost.contention.fit else 1
    found = set()
    for asked, schedule in schedules:
        for op in schedule.ops():
            signature = op.signature
            if isinstance(signature, Collective):
                duration_ns, ctas = cost.duration_ns(signature), signature.ctas or default
                found.add(PaceRow(op.lane, asked, signature.size_bytes, duration_ns, ctas))
    return sorted(found)
