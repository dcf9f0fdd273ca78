"""Stage ``queues``: what keeps GEMMs from running beside a collective that came before them.

Rows of GEMMs meet emulated collectives, as those of a plan do: with one hardware queue or as many
as CUDA has, launched one by one or as a graph, with edges that keep the order of launches or
without, and with events that have a time or not. The number of queues is read when CUDA starts, so
each has a process of its own.

A collective lasts as long as ``COVERED`` of the ``BEHIND`` GEMMs that follow it. So a share of 1
is all that can be hidden, 1 / COVERED the first GEMM alone, and 0 nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.replays import CaptureError, captured
from domino_tune.runtime.head_start import HeadStart
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.emulated import Wire, emulated_lane
from domino_tune.runtime.lanes.lane import Handle
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import StreamQueue
from domino_tune.runtime.launch_spec import QUEUES_SETTING
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import median_ns

QUEUES: Final = {"one queue": "1", "usual queues": ""}
"""Case -> the value of QUEUES_SETTING; empty: not set."""
ROUNDS: Final = 3
"""Collectives in a row; before each stands a GEMM that it waits for."""
BEHIND: Final = 3
COVERED: Final = 2.5
REPEATS: Final = 5
CTAS: Final = 16
BYTES_PER_NS: Final = 100
"""What a collective moves through HBM: little, so that memory slows neither side."""
SECONDS: Final = 14.0
LIMIT_S: Final = 60.0

Timed = Literal["nothing", "collectives", "all"]


class Cell(NamedTuple):
    """How a row is launched. ``edges``: a graph keeps the order of launches. ``timed``: what stands
    between events that have a time."""

    launch: Literal["eager", "graph"]
    edges: bool = False
    timed: Timed = "nothing"

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.launch}{', edges' if self.edges else ''}, {self.timed} timed"


CELLS: Final = (
    Cell("eager"), Cell("eager", timed="collectives"), Cell("eager", timed="all"),
    Cell("graph"), Cell("graph", timed="collectives"), Cell("graph", edges=True),
)  # fmt: skip
"""With edges last: where they cannot be captured, the process is spoilt. In a graph with edges no
collective has timed events, since such an edge begins at a kernel."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The GEMMs of a row, and the device."""

    tokens: int = 16384
    out: int = 2560
    wide: int = 5120
    device: str = "cuda:0"


def queue_cases(stage: Stage, sizes: Sizes | None = None) -> Iterator[GpuCase]:
    """Yield a case for each number of queues; its row has what each cell overlapped."""
    for name, queues in QUEUES.items():
        measure = partial(_in_a_process, queues, sizes or Sizes(device=str(stage.device)))
        yield GpuCase(name=name, seconds=SECONDS, measure=measure)


def _in_a_process(queues: str, sizes: Sizes) -> Row:
    """Return the row that another process measures with ``queues`` hardware queues. Raise RunError
    if it fails."""
    env = {name: value for name, value in os.environ.items() if name != QUEUES_SETTING}
    if queues:
        env[QUEUES_SETTING] = queues
    ran = subprocess.run(
        [sys.executable, "-m", "lab.gpu.queues", json.dumps(asdict(sizes))],
        env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RunError(f"The process with its own queues failed: {ran.stderr.strip()[-500:]}")
    row: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    told = ", ".join(
        f"{cell['name']} {cell['overlapped']:.2f}" for cell in row["cells"] if "overlapped" in cell
    )
    return {**row, "told": f"overlapped: {told}"}


def measured(sizes: Sizes) -> Row:
    """Return every cell that the device has, in this process; a graph needs CUDA."""
    device = torch.device(sizes.device)
    queues = os.environ.get(QUEUES_SETTING, "")
    cells, failed = [], []
    for cell in CELLS if device.type == "cuda" else CELLS[:1]:
        try:
            with _launch_order(kept=cell.edges):
                cells.append({"name": cell.name, **_cell(cell, sizes, device)})
        except CaptureError as error:
            failed.append(f"{cell.name}: {error}")
            break
    return {"queues": queues, "cells": cells, "failed": failed}


@contextmanager
def _launch_order(*, kept: bool) -> Iterator[None]:
    """Have captures keep the order of launches, or not. CUDA has read the variable before, so that
    the number of queues stays."""
    before = os.environ.get(QUEUES_SETTING)
    os.environ[QUEUES_SETTING] = "1" if kept else "8"
    try:
        yield
    finally:
        if before is None:
            del os.environ[QUEUES_SETTING]
        else:
            os.environ[QUEUES_SETTING] = before


def _cell(cell: Cell, sizes: Sizes, device: torch.device) -> Row:
    gemm = _gemm(sizes, device)
    one_ns = _took_ns(cell, device, lambda: [gemm() for _ in range(ROUNDS)]) / ROUNDS
    issue = _collectives(cell, device, Pace(round(COVERED * one_ns), CTAS))

    def row(*, gemms: bool, collectives: bool) -> Callable[[], None]:
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

        return play

    found = {
        "gemms_ns": _took_ns(cell, device, row(gemms=True, collectives=False)),
        "collectives_ns": _took_ns(cell, device, row(gemms=False, collectives=True)),
        "together_ns": _took_ns(cell, device, row(gemms=True, collectives=True)),
    }
    return {**found, "overlapped": overlapped(**found)}


def overlapped(gemms_ns: float, collectives_ns: float, together_ns: float) -> float:
    """Return what share of the shorter ran beside the longer: of the collectives, or of the GEMMs
    after them."""
    behind_ns = gemms_ns * BEHIND / (1 + BEHIND)
    return (gemms_ns + collectives_ns - together_ns) / min(collectives_ns, behind_ns)


def _gemm(sizes: Sizes, device: torch.device) -> Callable[[], object]:
    x, weight = (
        torch.ones(rows, sizes.wide, dtype=torch.bfloat16, device=device)
        for rows in (sizes.tokens, sizes.out)
    )
    return lambda: F.linear(x, weight)


def _collectives(cell: Cell, device: torch.device, pace: Pace) -> Callable[[], Handle]:
    """Return a function that launches one collective after everything issued so far."""
    call = all_reduce(torch.zeros(8, device=device))
    if device.type != "cuda":
        lane = emulated_lane(lambda _: pace, device)
        return lambda: lane.issue("row", call)
    queue, wire = StreamQueue(timed=cell.launch == "eager" and cell.timed != "nothing"), _wire()

    def work() -> None:
        inside = cell.launch == "graph" and cell.timed == "collectives"
        _mark(inside)
        wire.carry(BYTES_PER_NS * pace.duration_ns, pace)
        _mark(inside)

    return lambda: queue.launch("row", call, work)


def _mark(wanted: bool) -> None:
    """Record an event that has a time, in a capture one of the graph's."""
    if wanted:
        capturing = torch.cuda.is_current_stream_capturing()
        event = torch.cuda.Event(enable_timing=True, external=capturing)  # type: ignore[no-untyped-call]
        event.record()


@cache
def _wire() -> Wire:
    return Wire()


def _took_ns(cell: Cell, device: torch.device, play: Callable[[], object]) -> float:
    """Return the median time of a row, which runs once before."""
    if cell.launch == "graph":
        return median_ns(device, captured(lambda: play).graph.replay, REPEATS)
    play()
    ahead = HeadStart(spin_ns=20_000_000) if device.type == "cuda" else None
    return median_ns(device, play, REPEATS, ahead)


if __name__ == "__main__":
    print(json.dumps(measured(Sizes(**json.loads(sys.argv[1])))))
