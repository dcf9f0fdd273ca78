"""Stages ``admission`` and ``contention``: what emulated collectives and ops do to each other.

``admission``: when a collective gets in that meets a GEMM, and what both then take. GEMMs have one
wave of tiles, one and a half, two, four or ten; the library is asked to leave some SMs free, or
none.

``contention``: every op alone, and beside collectives without a pause. A cell is an op and
collectives of C CTAs that move bytes at some rate. Its result is the slowdown of each op while
collectives run all the time, and of each collective while ops do. Multimem stores need a switch and
a second GPU: they cannot run here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.measure.gpu import meetings
from domino_tune.measure.gpu.events import Work
from domino_tune.measure.gpu.meetings import COLLECTIVE_NS, Encounter, Gate
from domino_tune.measure.gpu.works import SETS, NamedWork, random_bf16, works
from domino_tune.runtime.lanes.emulated import Wire
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import HIGH_PRIORITY, StreamQueue
from lab import Shape
from lab.gpu.cases import SHAPES
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import Arena, Traffic

EXPERTS: Final = 8
REPEATS: Final = 5


def admission_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per GEMM, kind and margin, those without a margin first."""
    gate = cache(Gate)  # made on the GPU, with the first case
    for margin, kind, shape in product((0, 8, 16, 32), MAKERS, SHAPES["admission"]):
        if kind == "spared" or not margin:
            name = f"{kind}/{'x'.join(map(str, shape))}/spares {margin}"
            yield GpuCase(name, 2.0, partial(_admitted, gate, kind, shape, margin))


def _admitted(made: Callable[[], Gate], kind: str, shape: Shape, margin: int) -> Row:
    gate, work = made(), MAKERS[kind](shape, margin)
    alone_ns, cells = gate.alone_ns(work), []
    for arrival, rate, ctas in product(meetings.ARRIVALS, meetings.RATES, meetings.CTAS):
        one = Encounter(work, alone_ns, ctas, rate, arrival)
        gate.meet(one)  # warms up
        met = median_meeting([gate.meet(one) for _ in range(REPEATS)])
        cells.append({"arrival": arrival, "rate": rate, "ctas": ctas, **met})
    return {
        "kind": kind, "shape": list(shape), "margin": margin, "alone_ns": alone_ns,
        "collective_ns": COLLECTIVE_NS, "cells": cells,
    }  # fmt: skip


def median_meeting(found: Sequence[meetings.Meeting]) -> dict[str, Any]:
    """Return the medians of several meetings, and how far their starts lie apart."""
    starts, told = [one.all_in for one in found], ("first_in", "all_in", "end", "arrived")
    return {
        **{f"{of}_ns": statistics.median(getattr(one, of) for one in found) for of in told},
        "late": sum(one.late for one in found),
        "gemms_ns": list(map(statistics.median, zip(*(one.ops for one in found), strict=True))),
        "least_in_ns": min(starts), "most_in_ns": max(starts),
    }  # fmt: skip


def _library(shape: Shape, margin: int) -> Work:
    tokens, out, wide = shape
    x, weight = ([random_bf16(rows, wide) for _ in range(SETS)] for rows in (tokens, out))
    return lambda call: F.linear(x[call % SETS], weight[call % SETS])


def _spared(shape: Shape, margin: int) -> Work:
    linear = _library(shape, margin)

    def work(call: int) -> object:
        usual = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch._C._set_sm_carveout_experimental(margin)
        try:
            return linear(call)
        finally:
            torch._C._set_sm_carveout_experimental(None)
            torch.backends.cuda.preferred_blas_library(usual)

    return work


def _grouped(shape: Shape, margin: int) -> Work:
    tokens, out, wide = shape
    ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32, device="cuda") * (tokens // EXPERTS)
    x = [random_bf16(tokens, wide) for _ in range(SETS)]
    weight = random_bf16(EXPERTS * out, wide).view(EXPERTS, out, wide).transpose(-2, -1)
    return lambda call: torch._grouped_mm(x[call % SETS], weight, offs=ends)


MAKERS: Final[dict[str, Callable[[Shape, int], Work]]] = {
    "library": _library, "grouped": _grouped, "spared": _spared,
}  # fmt: skip
"""cuBLAS as it is; the GEMMs of experts in one kernel; cuBLASLt, asked to leave SMs free (its
SM_COUNT_TARGET)."""


# Beside collectives without a pause --------------------------------------------------------------


class Cell(NamedTuple):
    """One kind of collectives. ``rate``: bytes/ns that a CTA moves through HBM. 0 takes SMs but no
    bandwidth; 40 with 16 CTAs is about what an all-reduce of 280 GB/s (algorithm bandwidth) over
    NVSwitch reads and writes."""

    ctas: int
    rate: float
    priority: int = HIGH_PRIORITY
    collective_first: bool = True


CELLS: Final = (
    *(Cell(ctas, rate) for rate in (0.0, 40.0) for ctas in (1, 2, 4, 8, 16, 32)),
    *(
        Cell(ctas, 40.0, priority, first) for ctas in (8, 32)
        for priority, first in ((0, True), (HIGH_PRIORITY, False), (0, False))
    ),
)  # fmt: skip
"""The grid of one op; only a few cells vary order and priority."""


def contention_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per op: alone, and with every collective."""
    made = cache(Contention)  # on the GPU, with the first case
    for named in works():
        yield GpuCase(named.case, 6.0, lambda named=named: made().row(named))  # type: ignore[misc]


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
        pace, (ctas, rate, priority, first) = Pace(COLLECTIVE_NS, cell.ctas), cell
        issue = partial(self._wire.carry, meetings.moved_bytes(ctas, rate), pace)
        traffic, key = Traffic(StreamQueue(priority).stream, issue), (ctas, rate, priority)
        if key not in self._alone_ns:
            self._alone_ns[key] = self._arena.traffic_alone(traffic)
        unit_ns = self._alone_ns[key]
        found = self._arena.concurrent(work, traffic, alone_ns, unit_ns, first=first)
        return {**cell._asdict(), "collective_alone_ns": unit_ns, **found}
