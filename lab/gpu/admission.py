"""Stages ``admission``, ``contention`` and ``queues``: what ops and emulated collectives do.

``admission``: when a collective gets in that meets a GEMM, and what both then take. GEMMs have one
wave of tiles, one and a half, two, four or ten; the library is asked to leave some SMs free, or
none.

``contention``: every op alone, and beside collectives without a pause. A cell is an op and
collectives of C CTAs that move bytes at some rate. Its result is the slowdown of each op while
collectives run all the time, and of each collective while ops do. Multimem stores need a switch and
a second GPU: they cannot run here."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, Final, Literal, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.base.errors import RunError
from domino_tune.measure import gpu
from domino_tune.measure.gpu import (
    COLLECTIVE_NS,
    SETS,
    Encounter,
    Gate,
    NamedWork,
    Work,
    random_bf16,
    works,
)
from domino_tune.measure.gpu.loads import captured
from domino_tune.runtime.clock import HeadStart
from domino_tune.runtime.lanes import Pace, streams
from domino_tune.runtime.lanes.lane import Handle, all_reduce
from domino_tune.runtime.lanes.streams import EmulatedWire, StreamQueue, emulated_lane
from domino_tune.runtime.launch_spec import QUEUES_SETTING
from lab import Shape
from lab.gpu.cases import SHAPES
from lab.gpu.stage import Arena, GpuCase, Play, Row, Stage, Traffic, median_ns

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
    for arrival, rate, ctas in product(gpu.ARRIVALS, gpu.RATES, gpu.CTAS):
        one = Encounter(work, alone_ns, ctas, rate, arrival)
        gate.meet(one)  # warms up
        met = median_meeting([gate.meet(one) for _ in range(REPEATS)])
        cells.append({"arrival": arrival, "rate": rate, "ctas": ctas, **met})
    return {
        "kind": kind, "shape": list(shape), "margin": margin, "alone_ns": alone_ns,
        "collective_ns": COLLECTIVE_NS, "cells": cells,
    }  # fmt: skip


def median_meeting(found: Sequence[gpu.Meeting]) -> dict[str, Any]:
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


MAKERS: Final = {"library": _library, "grouped": _grouped, "spared": _spared}
"""cuBLAS as it is; the GEMMs of experts in one kernel; cuBLASLt, asked to leave SMs free (its
SM_COUNT_TARGET)."""


class Cell(NamedTuple):
    """One kind of collectives. ``rate``: bytes/ns that a CTA moves through HBM. 0 takes SMs but no
    bandwidth; 40 with 16 CTAs is about what an all-reduce of 280 GB/s (algorithm bandwidth) over
    NVSwitch reads and writes."""

    ctas: int
    rate: float
    priority: int = streams.HIGH_PRIORITY
    collective_first: bool = True


CELLS: Final = (
    *(Cell(ctas, rate) for rate in (0.0, 40.0) for ctas in (1, 2, 4, 8, 16, 32)),
    *(
        Cell(ctas, 40.0, priority, first) for ctas in (8, 32)
        for priority, first in ((0, True), (streams.HIGH_PRIORITY, False), (0, False))
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
        self._arena, self._wire = Arena(), EmulatedWire()
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
        issue = partial(self._wire.carry, gpu.moved_bytes(ctas, rate), pace)
        traffic, key = Traffic(StreamQueue(priority).stream, issue), (ctas, rate, priority)
        if key not in self._alone_ns:
            self._alone_ns[key] = self._arena.traffic_alone(traffic)
        unit_ns = self._alone_ns[key]
        found = self._arena.concurrent(work, traffic, alone_ns, unit_ns, first=first)
        return {**cell._asdict(), "collective_alone_ns": unit_ns, **found}


# Stage queues: what keeps GEMMs from running beside a collective that came before them ------------

QUEUES: Final = {"one queue": "1", "usual queues": ""}
"""Case -> the value of QUEUES_SETTING; empty: not set."""
ROUNDS: Final = 3  # Collectives in a row; before each stands a GEMM that it waits for
BEHIND: Final = 3
COVERED: Final = 2.5
BYTES_PER_NS: Final = 100
"""What a collective moves through HBM: little, so that memory slows neither side."""
SECONDS: Final = 14.0
LIMIT_S: Final = 60.0


class Launched(NamedTuple):
    """How a row is launched. ``timed``: what stands between events that have a time."""

    launch: Literal["eager", "graph"]
    timed: Literal["nothing", "collectives", "all"] = "nothing"

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.launch}, {self.timed} timed"


LAUNCHES: Final = (
    Launched("eager"), Launched("eager", "collectives"), Launched("eager", "all"),
    Launched("graph"), Launched("graph", "collectives"),
)  # fmt: skip


def queue_cases(stage: Stage, shape: Shape = (16384, 2560, 5120)) -> Iterator[GpuCase]:
    """Yield a case for each number of queues; its row has what each cell overlapped.

    Rows of GEMMs meet emulated collectives, as those of a plan do: with one hardware queue or as
    many as CUDA has, launched one by one or as a graph, and with events that have a time or not.
    The number of queues is read when CUDA starts, so each has a process of its own, which tells
    each cell as soon as it has been timed: a process that dies loses the rest alone. A collective
    lasts as long as ``COVERED`` of the ``BEHIND`` GEMMs that follow it: a share of 1 is all that
    can be hidden, 1 / COVERED the first GEMM alone, and 0 nothing."""
    for name, queues in QUEUES.items():
        yield GpuCase(name, SECONDS, partial(_in_a_process, queues, shape, str(stage.device)))


def _in_a_process(queues: str, shape: Shape, device: str) -> Row:
    """Return another process' row; ``failed`` says how it died. Raise RunError without a cell."""
    env = {name: value for name, value in os.environ.items() if name != QUEUES_SETTING}
    words = ["-X", "faulthandler", "-m", "lab.gpu.admission", json.dumps([shape, device])]
    ran = subprocess.run(
        [sys.executable, *words], env={**env, QUEUES_SETTING: queues} if queues else env, text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    cells = [json.loads(line) for line in ran.stdout.splitlines()]
    said = f"ended with {ran.returncode}: {ran.stderr.strip()[-1000:]}" if ran.returncode else ""
    if not cells:
        raise RunError(f"The process with its own queues {said}")
    shares = ", ".join(f"{cell['name']} {cell['overlapped']:.2f}" for cell in cells)
    return {"queues": queues, "cells": cells, "failed": said, "told": f"overlapped: {shares}"}


def measured(shape: Shape, named: str) -> Iterator[Row]:
    """Yield every cell that the device has, in this process; a graph needs CUDA."""
    device = torch.device(named)
    for cell in LAUNCHES if device.type == "cuda" else LAUNCHES[:1]:
        yield {"name": cell.name, **_cell(cell, shape, device)}


def _cell(cell: Launched, shape: Shape, device: torch.device) -> Row:
    (tokens, out, wide), ones = shape, partial(torch.ones, dtype=torch.bfloat16, device=device)
    gemm = partial(F.linear, ones(tokens, wide), ones(out, wide))
    one_ns = _took_ns(cell, device, lambda: [gemm() for _ in range(ROUNDS)]) / ROUNDS
    issue = _collectives(cell, device, Pace(round(COVERED * one_ns), ctas=16))

    def row_ns(*, gemms: bool, collectives: bool) -> float:
        def play() -> None:
            for _ in range(ROUNDS):
                if gemms:
                    gemm()
                handle = issue() if collectives else None
                for _ in range(BEHIND if gemms else 0):
                    _mark(cell.timed == "all")
                    gemm()
                    _mark(cell.timed == "all")
                if handle is not None:
                    handle.wait()

        return _took_ns(cell, device, play)

    found = {
        "gemms_ns": row_ns(gemms=True, collectives=False),
        "collectives_ns": row_ns(gemms=False, collectives=True),
        "together_ns": row_ns(gemms=True, collectives=True),
    }
    return {**found, "overlapped": overlapped(**found)}


def overlapped(gemms_ns: float, collectives_ns: float, together_ns: float) -> float:
    """Return what share ran beside the longer: of the collectives, or GEMMs after them."""
    behind_ns = gemms_ns * BEHIND / (1 + BEHIND)
    return (gemms_ns + collectives_ns - together_ns) / min(collectives_ns, behind_ns)


def _collectives(cell: Launched, device: torch.device, pace: Pace) -> Callable[[], Handle]:
    call = all_reduce(torch.zeros(8, device=device))
    if device.type != "cuda":
        lane = emulated_lane(lambda _: pace, device)
        return lambda: lane.issue("row", call)
    is_timed = cell.launch == "eager" and cell.timed != "nothing"
    queue, wire = StreamQueue(timed=is_timed), EmulatedWire()

    def work() -> None:
        inside = cell.launch == "graph" and cell.timed == "collectives"
        _mark(inside)
        wire.carry(BYTES_PER_NS * pace.duration_ns, pace)
        _mark(inside)

    return lambda: queue.launch("row", call, work)


def _mark(wanted: bool) -> None:
    if wanted:
        capturing = torch.cuda.is_current_stream_capturing()
        event = torch.cuda.Event(enable_timing=True, external=capturing)  # type: ignore[no-untyped-call]
        event.record()


def _took_ns(cell: Launched, device: torch.device, play: Play) -> float:
    if cell.launch == "graph":
        return median_ns(device, captured(lambda: play).graph.replay, REPEATS)
    play()
    ahead = HeadStart(spin_ns=20_000_000) if device.type == "cuda" else None
    return median_ns(device, play, REPEATS, ahead)


if __name__ == "__main__":
    for row in measured(*json.loads(sys.argv[1])):
        print(json.dumps(row), flush=True)
