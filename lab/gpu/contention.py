"""Contention on one GPU, by CTA count: ops while emulated collectives run without a pause.

A cell is an op and collectives of C CTAs that move bytes at some rate. Its result is the slowdown
of each op while collectives run all the time, and of each collective while ops do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Final

from domino_tune.measure.gpu.meetings import COLLECTIVE_NS, moved_bytes
from domino_tune.measure.gpu.works import NamedWork, works
from domino_tune.runtime.lanes.emulated import Wire
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue
from lab.gpu.arena import Arena, Beside, Traffic
from lab.gpu.stage import GpuCase, Row, Stage

CTAS: Final = (1, 2, 4, 8, 16, 32)
BYTES_PER_NS_PER_CTA: Final = (0.0, 40.0)
"""Through HBM. 0 takes SMs but no bandwidth; 40 with 16 CTAs is about what an all-reduce of
280 GB/s (algorithm bandwidth) over NVSwitch reads and writes."""
SECONDS: Final = 6.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of an op, with its sizes in ``shape``, and a collective."""

    family: str
    name: str
    shape: tuple[int, ...]
    ctas: int
    rate: float
    priority: int = HIGH_PRIORITY
    collective_first: bool = True


def cells_of(family: str, name: str, shape: tuple[int, ...]) -> Iterator[Cell]:
    """Yield the grid of one op; only a few cells vary order and priority."""
    for rate in BYTES_PER_NS_PER_CTA:
        for ctas in CTAS:
            yield Cell(family=family, name=name, shape=shape, ctas=ctas, rate=rate)
    for ctas in (8, 32):
        for priority, first in ((0, True), (HIGH_PRIORITY, False), (0, False)):
            yield Cell(
                family=family, name=name, shape=shape, ctas=ctas, rate=BYTES_PER_NS_PER_CTA[-1],
                priority=priority, collective_first=first,
            )  # fmt: skip


def contention_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with every collective of its cells."""
    arena, wire = cache(Arena), cache(Wire)  # made on the GPU, with the first case

    def beside_collectives(named: NamedWork) -> Row:
        cells = cells_of(named.family, named.name, named.shape)
        return arena().row(named, (_collective(wire(), cell) for cell in cells),
                           "collective_alone_ns")  # fmt: skip

    for work in works():
        yield GpuCase(
            name=work.case, seconds=SECONDS, measure=partial(beside_collectives, work)
        )  # fmt: skip


def _collective(wire: Wire, cell: Cell) -> Beside:
    """Return the cell's collectives as traffic."""
    issue = partial(wire.carry, moved_bytes(cell.ctas, cell.rate), Pace(COLLECTIVE_NS, cell.ctas))
    traffic = Traffic(StreamQueue(cell.priority).stream, issue)
    key = cell.ctas, cell.rate, cell.priority
    return Beside(asdict(cell), traffic, key, cell.collective_first)
