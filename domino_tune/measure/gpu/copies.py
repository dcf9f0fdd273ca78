"""Copies beside compute: what transfers that need no SM, or few, cost the ops that they meet.

Copies from and to pinned memory of the host go by copy engines, over PCIe. Copies within the device
are kernels on SMs: they show what traffic at memory's own rate costs. A transfer between GPUs by
copy engine needs no SM, as the first, at NVLink's rate, which lies between the two. Multimem stores
need a switch and a second GPU: they cannot run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Final

import torch

from domino_tune.measure.gpu.arena import Arena, Traffic
from domino_tune.measure.gpu.stage import GpuCase, Row, Stage
from domino_tune.measure.gpu.works import NamedWork, works
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue

MIB: Final = 1 << 20
SIZES: Final = (16 * MIB, 64 * MIB)
"""Bytes of one copy; a unit of traffic has as many as make the largest."""
WAYS: Final = ("within", "to_host", "from_host")
SECONDS: Final = 3.0


class Copies:
    """Transfers of every way and size, timed once each."""

    def __init__(self) -> None:
        self._alone_ns: dict[tuple[str, int], float] = {}

    @cached_property
    def arena(self) -> Arena:
        """The arena: made on the GPU when it is first used."""
        return Arena()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return StreamQueue(HIGH_PRIORITY).stream

    @cached_property
    def _buffers(self) -> dict[str, torch.Tensor]:
        size = max(SIZES)
        return {
            "source": torch.zeros(size, dtype=torch.uint8, device="cuda"),
            "target": torch.zeros(size, dtype=torch.uint8, device="cuda"),
            "host": torch.zeros(size, dtype=torch.uint8, pin_memory=True),
        }

    def traffic(self, way: str, size: int) -> tuple[Traffic, float]:
        """Return copies of ``size`` bytes as traffic, and how long one takes alone, ns."""
        ends = {
            "within": ("target", "source"),
            "to_host": ("host", "source"),
            "from_host": ("target", "host"),
        }
        into, out_of = (self._buffers[name][:size] for name in ends[way])

        def issue() -> None:
            for _ in range(max(SIZES) // size):
                into.copy_(out_of, non_blocking=True)

        traffic = Traffic(self._stream, issue)
        if (way, size) not in self._alone_ns:
            self._alone_ns[way, size] = self.arena.traffic_alone(traffic)
        return traffic, self._alone_ns[way, size]


def copy_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with copies of every way and size."""
    copies = Copies()
    for work in works():
        measure: Callable[[], Row] = partial(beside_copies, copies, work)
        yield GpuCase(name=work.case, seconds=SECONDS, measure=measure, tell=costs)


def beside_copies(copies: Copies, named: NamedWork) -> Row:
    """Return the row of one op."""
    work = named.make()
    alone_ns = copies.arena.ops_alone(work)
    cells = []
    for way in WAYS:
        for size in SIZES:
            traffic, unit_ns = copies.traffic(way, size)
            found = copies.arena.concurrent(work, traffic, alone_ns, unit_ns)
            cells.append({"way": way, "bytes": size, "copy_alone_ns": unit_ns, **found})
    return {
        "family": named.family, "name": named.name, "shape": list(named.shape),
        "alone_ns": alone_ns, "alone_again_ns": copies.arena.ops_alone(work), "cells": cells,
    }  # fmt: skip


def costs(row: Row) -> str:
    """Return the slowdowns op/copy by way, of the largest copies, as text."""
    return ", ".join(
        f"{cell['way']} {(cell['op_mean_ns'] or 0) / row['alone_ns']:.3f}/"
        f"{(cell['collective_ns'] or 0) / cell['copy_alone_ns']:.3f}"
        for cell in row["cells"]
        if cell["bytes"] == max(SIZES)
    )
