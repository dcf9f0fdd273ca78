"""Contention on one GPU, by CTA count: ops while emulated collectives run without a pause.

A cell is an op and collectives of C CTAs that move bytes at some rate. Its result is the slowdown
of each op while collectives run all the time, and of each collective while ops do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Final

from domino_tune.measure.gpu.arena import Arena, Traffic
from domino_tune.measure.gpu.stage import GpuCase, Row, Stage
from domino_tune.measure.gpu.works import NamedWork, works
from domino_tune.runtime.lanes.emulated import Wire
from domino_tune.runtime.lanes.pace import MOVED_PER_BYTE, Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue

CTAS: Final = (1, 2, 4, 8, 16, 32)
BYTES_PER_NS_PER_CTA: Final = (0.0, 40.0)
"""Through HBM. 0 takes SMs but no bandwidth; 40 with 16 CTAs is about what an all-reduce of
280 GB/s (algorithm bandwidth) over NVSwitch reads and writes."""
COLLECTIVE_NS: Final = 150_000
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


def moved_bytes(ctas: int, rate: float) -> int:
    """Return the bytes through memory of a collective whose CTAs each move ``rate`` bytes/ns."""
    return max(4 * MOVED_PER_BYTE, round(rate * ctas * COLLECTIVE_NS))


class Bench:
    """An arena, and the emulated collectives in it, timed once each."""

    def __init__(self) -> None:
        self._alone_ns: dict[tuple[int, float, int], float] = {}

    @cached_property
    def arena(self) -> Arena:
        """The arena: made on the GPU when it is first used."""
        return Arena()

    @cached_property
    def wire(self) -> Wire:
        """The link of the emulated collectives."""
        return Wire()

    def collective(self, ctas: int, rate: float, priority: int) -> tuple[Traffic, float]:
        """Return collectives as traffic, and how long one takes alone, ns."""
        pace, moved = Pace(COLLECTIVE_NS, ctas), moved_bytes(ctas, rate)
        traffic = Traffic(StreamQueue(priority).stream, partial(self.wire.carry, moved, pace))
        key = ctas, rate, priority
        if key not in self._alone_ns:
            self._alone_ns[key] = self.arena.traffic_alone(traffic)
        return traffic, self._alone_ns[key]


def contention_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with every collective of its cells."""
    bench = Bench()
    for work in works():
        yield GpuCase(
            name=work.case, seconds=SECONDS, measure=partial(beside_collectives, bench, work),
            tell=slowdowns,
        )  # fmt: skip


def beside_collectives(bench: Bench, named: NamedWork) -> Row:
    """Return the row of one op."""
    work = named.make()
    alone_ns = bench.arena.ops_alone(work)
    rows = []
    for cell in cells_of(named.family, named.name, named.shape):
        traffic, unit_ns = bench.collective(cell.ctas, cell.rate, cell.priority)
        found = bench.arena.concurrent(
            work, traffic, alone_ns, unit_ns, first=cell.collective_first
        )
        rows.append({**asdict(cell), "collective_alone_ns": unit_ns, **found})
    return {
        "family": named.family, "name": named.name, "shape": list(named.shape),
        "alone_ns": alone_ns, "alone_again_ns": bench.arena.ops_alone(work), "cells": rows,
    }  # fmt: skip


def slowdowns(row: Row) -> str:
    """Return the slowdowns op/collective by CTA count, at the highest rate, as text."""
    cells = [c for c in row["cells"] if c["rate"] and c["collective_first"] and c["priority"] < 0]
    found = " ".join(
        f"c{c['ctas']} {(c['op_ns'] or 0) / row['alone_ns']:.3f}/"
        f"{(c['collective_ns'] or 0) / c['collective_alone_ns']:.3f}"
        for c in cells
    )
    return f"alone {row['alone_ns'] / 1e3:.1f} us, {found}"
