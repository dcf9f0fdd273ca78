"""Stages ``contention`` and ``copies``: every op alone, and beside traffic without a pause.

A cell is an op and traffic: emulated collectives of C CTAs that move bytes at some rate, or copies.
Its result is the slowdown of each op while the traffic runs all the time, and of each unit of
traffic while ops do.

Copies from and to pinned memory of the host go by copy engines, over PCIe. Copies within the device
are kernels on SMs: they show what traffic at memory's own rate costs. A transfer between GPUs by
copy engine needs no SM, as the first, at NVLink's rate, which lies between the two. Multimem stores
need a switch and a second GPU: they cannot run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import product
from typing import Final, NamedTuple

import torch

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
MIB: Final = 1 << 20
SIZES: Final = (16 * MIB, 64 * MIB)
"""Bytes of one copy; a unit of traffic has as many as make the largest."""
WAYS: Final = {
    "within": ("target", "source"), "to_host": ("host", "source"), "from_host": ("target", "host"),
}  # fmt: skip
"""Way -> into which buffer, out of which."""


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
    wire = cache(Wire)  # made on the GPU, with the first case
    return _cases(
        lambda: (_collective(wire(), cell) for cell in CELLS), "collective_alone_ns", seconds=6.0
    )


def copy_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with copies of every way and size."""
    copies = cache(Copies)
    return _cases(lambda: copies().all(), "copy_alone_ns", seconds=3.0)


def _cases(
    cells: Callable[[], Iterable[Beside]], alone_as: str, *, seconds: float
) -> Iterator[GpuCase]:
    arena = cache(Arena)

    def row(named: NamedWork) -> Row:
        return arena().row(named, cells(), alone_as)

    for work in works():
        yield GpuCase(name=work.case, seconds=seconds, measure=partial(row, work))


def _collective(wire: Wire, cell: Cell) -> Beside:
    """Return the cell's collectives as traffic."""
    issue = partial(wire.carry, moved_bytes(cell.ctas, cell.rate), Pace(COLLECTIVE_NS, cell.ctas))
    traffic = Traffic(StreamQueue(cell.priority).stream, issue)
    return Beside(cell._asdict(), traffic, cell[:3], cell.collective_first)


class Copies:
    """Transfers of every way and size."""

    def __init__(self) -> None:
        size = max(SIZES)
        self._stream = StreamQueue(HIGH_PRIORITY).stream
        self._buffers = {
            "source": torch.zeros(size, dtype=torch.uint8, device="cuda"),
            "target": torch.zeros(size, dtype=torch.uint8, device="cuda"),
            "host": torch.zeros(size, dtype=torch.uint8, pin_memory=True),
        }

    def all(self) -> Iterator[Beside]:
        """Yield copies of every way and size as traffic."""
        for way, size in product(WAYS, SIZES):
            traffic = self._traffic(WAYS[way], size)
            yield Beside({"way": way, "bytes": size}, traffic, (way, size))

    def _traffic(self, ends: tuple[str, str], size: int) -> Traffic:
        into, out_of = (self._buffers[name][:size] for name in ends)

        def issue() -> None:
            for _ in range(max(SIZES) // size):
                into.copy_(out_of, non_blocking=True)

        return Traffic(self._stream, issue)
