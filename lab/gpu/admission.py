"""Admission: when an emulated collective gets in that meets a GEMM, and what both then take.

GEMMs have one wave of tiles, one and a half, two, four or ten; the library is asked to leave some
SMs free, or none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, Final

import torch
import torch.nn.functional as F

from domino_tune.measure.gpu.events import Work
from domino_tune.measure.gpu.meetings import (
    ARRIVALS,
    COLLECTIVE_NS,
    CTAS,
    RATES,
    Encounter,
    Gate,
    Meeting,
)  # fmt: skip
from domino_tune.measure.gpu.works import SETS, random_bf16
from lab.gpu.stage import GpuCase, Row, Stage

Shape = tuple[int, int, int]
SHAPES: Final[tuple[Shape, ...]] = (
    (1664, 2560, 5120), (2560, 2560, 5120), (3328, 2560, 5120), (6656, 2560, 5120),
    (16384, 2560, 5120), (4096, 7168, 8192), (8192, 5120, 640),
)  # fmt: skip
"""tokens, out, in: 130, 200, 260, 520 and 1,280 tiles of 128 × 256 on 132 SMs; and two more layers,
to be predicted from the others."""
MARGINS: Final = (0, 8, 16, 32)
EXPERTS: Final = 8
REPEATS: Final = 5
SECONDS: Final = 2.0


def admission_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per GEMM, kind and margin, those without a margin first."""
    gate = cache(Gate)  # made on the GPU, with the first case
    for margin, kind, shape in product(MARGINS, MAKERS, SHAPES):
        if kind == "spared" or not margin:
            yield GpuCase(
                name=f"{kind}/{'x'.join(map(str, shape))}/spares {margin}", seconds=SECONDS,
                measure=partial(_admitted, gate, kind, shape, margin),
            )  # fmt: skip


def _admitted(made: Callable[[], Gate], kind: str, shape: Shape, margin: int) -> Row:
    gate = made()
    work = MAKERS[kind](shape, margin)
    alone_ns, cells = gate.alone_ns(work), []
    for arrival, rate, ctas in product(ARRIVALS, RATES, CTAS):
        one = Encounter(work, alone_ns, ctas, rate, arrival)
        gate.meet(one)  # warms up
        met = median_meeting([gate.meet(one) for _ in range(REPEATS)])
        cells.append({"arrival": arrival, "rate": rate, "ctas": ctas, **met})
    return {
        "kind": kind, "shape": list(shape), "margin": margin, "alone_ns": alone_ns,
        "collective_ns": COLLECTIVE_NS, "cells": cells,
    }  # fmt: skip


def median_meeting(found: Sequence[Meeting]) -> dict[str, Any]:
    """Return the medians of several meetings, and how far their starts lie apart."""
    starts = [one.all_in for one in found]
    gemms = zip(*(one.ops for one in found), strict=True)
    return {
        "first_in_ns": statistics.median(one.first_in for one in found),
        "all_in_ns": statistics.median(starts),
        "end_ns": statistics.median(one.end for one in found),
        "arrived_ns": statistics.median(one.arrived for one in found),
        "late": sum(one.late for one in found),
        "gemms_ns": [statistics.median(times) for times in gemms],
        "least_in_ns": min(starts),
        "most_in_ns": max(starts),
    }


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
    """The tokens of ``EXPERTS`` experts, each with a weight of its own."""
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
