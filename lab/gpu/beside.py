"""Stage ``contention``: every op alone, and beside emulated collectives without a pause.

A cell is an op and collectives of C CTAs that move bytes at some rate. Its result is the slowdown
of each op while collectives run all the time, and of each collective while ops do. Multimem stores
need a switch and a second GPU: they cannot run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final, NamedTuple

from domino_tune.measure.gpu.events import Work
from domino_tune.measure.gpu.meetings import COLLECTIVE_NS, moved_bytes
from domino_tune.measure.gpu.works import NamedWork, works
from domino_tune.runtime.lanes.emulated import Wire
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue
from lab.gpu.arena import Arena, Traffic
from lab.gpu.stage import GpuCase, Row, Stage

CTAS: Final = (1, 2, 4, 8, 16, 32)
BYTES_PER_NS_PER_CTA: Final = (0.0, 40.0)
"""Through HBM. 0 takes SMs but no bandwidth; 40 with 16 CTAs is about what an all-reduce of
280 GB/s (algorithm bandwidth) over NVSwitch reads and writes."""
SECONDS: Final = 6.0


class Cell(NamedTuple):
    """One kind of collectives."""

    ctas: int
    rate: float
    priority: int = HIGH_PRIORITY
    collective_first: bool = True


CELLS: Final = (
    *(Cell(ctas, rate) for rate in BYTES_PER_NS_PER_CTA for ctas in CTAS),
    *(
        Cell(ctas, BYTES_PER_NS_PER_CTA[-1], priority, first)
        for ctas in (8, 32)
        for priority, first in ((0, True), (HIGH_PRIORITY, False), (0, False))
    ),
)
"""The grid of one op; only a few cells vary order and priority."""


def contention_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with every collective."""
    made = cache(Contention)  # on the GPU, with the first case
    for named in works():
        yield GpuCase(name=named.case, seconds=SECONDS, measure=lambda n=named: made().row(n))  # type: ignore[misc]


class Contention:
    """Ops and emulated collectives, whose times alone are known once measured."""

    def __init__(self) -> None:
        self._arena, self._wire = Arena(), Wire()
        self._alone_ns: dict[tuple[int, float, int], float] = {}

    def row(self, named: NamedWork) -> Row:
        """Return the record of an op alone and in every cell."""
        work = named.make()
        alone_ns = self._arena.ops_alone(work)
        cells = [self._met(work, alone_ns, cell) for cell in CELLS]
        return {
            "family": named.family, "name": named.name, "shape": list(named.shape),
            "alone_ns": alone_ns, "alone_again_ns": self._arena.ops_alone(work), "cells": cells,
        }  # fmt: skip

    def _met(self, work: Work, alone_ns: float, cell: Cell) -> dict[str, Any]:
        pace = Pace(COLLECTIVE_NS, cell.ctas)
        issue = partial(self._wire.carry, moved_bytes(cell.ctas, cell.rate), pace)
        traffic, key = Traffic(StreamQueue(cell.priority).stream, issue), cell[:3]
        if key not in self._alone_ns:
            self._alone_ns[key] = self._arena.traffic_alone(traffic)
        unit_ns = self._alone_ns[key]
        found = self._arena.concurrent(
            work, traffic, alone_ns, unit_ns, first=cell.collective_first
        )
        return {**cell._asdict(), "collective_alone_ns": unit_ns, **found}
