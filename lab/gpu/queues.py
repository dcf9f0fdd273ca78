"""Stage ``queues``: what keeps GEMMs from running beside a collective that came before them.

Rows of GEMMs meet emulated collectives, as those of a plan do: with one hardware queue or as many
as CUDA has, launched one by one or as a graph, and with events that have a time or not. The number
of queues is read when CUDA starts, so each has a process of its own, which tells each cell as soon
as it has been timed: a process that dies loses the rest alone.

A collective lasts as long as ``COVERED`` of the ``BEHIND`` GEMMs that follow it. So a share of 1
is all that can be hidden, 1 / COVERED the first GEMM alone, and 0 nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.replays import captured
from domino_tune.runtime.head_start import HeadStart
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.emulated import Wire, emulated_lane
from domino_tune.runtime.lanes.lane import Handle
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.streams import StreamQueue
from domino_tune.runtime.launch_spec import QUEUES_SETTING
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import Play, median_ns

QUEUES: Final = {"one queue": "1", "usual queues": ""}
"""Case -> the value of QUEUES_SETTING; empty: not set."""
ROUNDS: Final = 3  # Collectives in a row; before each stands a GEMM that it waits for
BEHIND: Final = 3
COVERED: Final = 2.5
REPEATS: Final = 5
CTAS: Final = 16
BYTES_PER_NS: Final = 100
"""What a collective moves through HBM: little, so that memory slows neither side."""
SECONDS: Final = 14.0
LIMIT_S: Final = 60.0


class Cell(NamedTuple):
    """How a row is launched. ``timed``: what stands between events that have a time."""

    launch: Literal["eager", "graph"]
    timed: Literal["nothing", "collectives", "all"] = "nothing"

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.launch}, {self.timed} timed"


CELLS: Final = (
    Cell("eager"), Cell("eager", "collectives"), Cell("eager", "all"),
    Cell("graph"), Cell("graph", "collectives"),
)  # fmt: skip


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
        yield GpuCase(name, SECONDS, measure)


def _in_a_process(queues: str, sizes: Sizes) -> Row:
    """Return another process' row; ``failed`` says how it died. Raise RunError without a cell."""
    env = {name: value for name, value in os.environ.items() if name != QUEUES_SETTING}
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "lab.gpu.queues", json.dumps(asdict(sizes))],
        env={**env, QUEUES_SETTING: queues} if queues else env, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    cells = [json.loads(line) for line in ran.stdout.splitlines()]
    said = f"ended with {ran.returncode}: {ran.stderr.strip()[-1000:]}" if ran.returncode else ""
    if not cells:
        raise RunError(f"The process with its own queues {said}")
    told = ", ".join(f"{cell['name']} {cell['overlapped']:.2f}" for cell in cells)
    return {"queues": queues, "cells": cells, "failed": said, "told": f"overlapped: {told}"}


def measured(sizes: Sizes) -> Iterator[Row]:
    """Yield every cell that the device has, in this process; a graph needs CUDA."""
    device = torch.device(sizes.device)
    for cell in CELLS if device.type == "cuda" else CELLS[:1]:
        yield {"name": cell.name, **_cell(cell, sizes, device)}


def _cell(cell: Cell, sizes: Sizes, device: torch.device) -> Row:
    ones = partial(torch.ones, dtype=torch.bfloat16, device=device)
    gemm = partial(F.linear, ones(sizes.tokens, sizes.wide), ones(sizes.out, sizes.wide))
    one_ns = _took_ns(cell, device, lambda: [gemm() for _ in range(ROUNDS)]) / ROUNDS
    issue = _collectives(cell, device, Pace(round(COVERED * one_ns), CTAS))

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


def _collectives(cell: Cell, device: torch.device, pace: Pace) -> Callable[[], Handle]:
    call = all_reduce(torch.zeros(8, device=device))
    if device.type != "cuda":
        lane = emulated_lane(lambda _: pace, device)
        return lambda: lane.issue("row", call)
    queue, wire = StreamQueue(timed=cell.launch == "eager" and cell.timed != "nothing"), Wire()

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


def _took_ns(cell: Cell, device: torch.device, play: Play) -> float:
    if cell.launch == "graph":
        return median_ns(device, captured(lambda: play).graph.replay, REPEATS)
    play()
    ahead = HeadStart(spin_ns=20_000_000) if device.type == "cuda" else None
    return median_ns(device, play, REPEATS, ahead)


if __name__ == "__main__":
    for row in measured(Sizes(**json.loads(sys.argv[1]))):
        print(json.dumps(row), flush=True)
