"""Copies beside compute: what transfers that need no SM, or few, cost the ops that they meet.

Copies from and to pinned memory of the host go by copy engines, over PCIe. Copies within the device
are kernels on SMs: they show what traffic at memory's own rate costs. A transfer between GPUs by
copy engine needs no SM, as the first, at NVLink's rate, which lies between the two. Multimem stores
need a switch and a second GPU: they cannot run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Final

import torch

from domino_tune.measure.gpu.works import NamedWork, works
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue
from lab.gpu.arena import Arena, Beside, Traffic
from lab.gpu.stage import GpuCase, Row, Stage

MIB: Final = 1 << 20
SIZES: Final = (16 * MIB, 64 * MIB)
"""Bytes of one copy; a unit of traffic has as many as make the largest."""
WAYS: Final = {
    "within": ("target", "source"), "to_host": ("host", "source"), "from_host": ("target", "host"),
}  # fmt: skip
"""Way -> into which buffer, out of which."""
SECONDS: Final = 3.0


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
        for way, ends in WAYS.items():
            for size in SIZES:
                yield Beside({"way": way, "bytes": size}, self._traffic(ends, size), (way, size))

    def _traffic(self, ends: tuple[str, str], size: int) -> Traffic:
        into, out_of = (self._buffers[name][:size] for name in ends)

        def issue() -> None:
            for _ in range(max(SIZES) // size):
                into.copy_(out_of, non_blocking=True)

        return Traffic(self._stream, issue)


def copy_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with copies of every way and size."""
    arena, copies = cache(Arena), cache(Copies)  # made on the GPU, with the first case

    def beside_copies(named: NamedWork) -> Row:
        return arena().row(named, copies().all(), "copy_alone_ns")

    for work in works():
        yield GpuCase(name=work.case, seconds=SECONDS, measure=partial(beside_copies, work))
