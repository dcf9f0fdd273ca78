"""The fast engine of pipelines: the kernel of ``simulator.kernels.pipeline`` over a program."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.errors import ScheduleError
from simulator.kernels import pipeline as columns
from simulator.kernels.load import call
from simulator.pipeline.program import PipelineProgram, PipelineRun
from simulator.pipeline.wires import LOWER, Ints


def play(program: PipelineProgram) -> PipelineRun:
    """Return the times of ``program``. Raise ScheduleError where ranks wait for each other."""
    made = _play(program)
    first, spans = program.wires.first, list(map(tuple, made.spans[:, :2].tolist()))
    ends = _ends(program, made)
    return PipelineRun(
        tuple(tuple(spans[low:high]) for low, high in pairwise(first)),
        tuple(map(tuple, made.over[:, [columns.STARTED, columns.ARRIVED]].tolist())),
        tuple(ends),
        program.step_end(ends),
        tuple(made.state[:, columns.WAITED].tolist()),
    )


def makespan_ns(program: PipelineProgram) -> int:
    """Return the makespan of ``play``."""
    return program.step_end(_ends(program, _play(program)))


class _Made(NamedTuple):
    """What the kernel filled in: rows of tasks, of messages, and of ranks."""

    spans: Ints
    over: Ints
    state: Ints


def _play(program: PipelineProgram) -> _Made:
    wires, count = program.wires, len(program.of_task)
    ranks, messages = len(wires.orders), len(wires.links)
    spans, over = np.empty((count, 4), np.int64), np.empty((messages, 4), np.int64)
    state, queue = np.zeros((ranks, columns.RANK_COLUMNS), np.int64), np.zeros(ranks, np.int64)
    lane_of, lanes, buckets = _lanes_of(program)
    tasks = np.column_stack([wires.ends, program.of_task, program.behind, lane_of])
    rows = np.column_stack([program.message_ns, wires.links[:, :LOWER]])
    played = call(
        "play_pipeline", wires.first, tasks, program.passes, lanes, buckets, rows,
        int(program.blocking), int(program.rendezvous), spans, over, state,
        np.zeros(program.links, np.int64), queue,
    )  # fmt: skip
    if played < count:
        raise _stuck(program, state)
    return _Made(spans, over, state)


def _lanes_of(program: PipelineProgram) -> tuple[Ints, Ints, Ints]:
    """Return each task's row of what it has on the data-parallel lane, these rows, and the buckets
    of all."""
    tasks = sorted({*program.gathers_ns, *program.buckets_ns})
    lane_of = np.full(len(program.of_task), columns.UNKNOWN, np.int64)
    lane_of[tasks] = range(len(tasks))
    rows, buckets = [], list[int]()
    for task in tasks:
        gathers_ns = program.gathers_ns.get(task, ())
        buckets_ns = program.buckets_ns.get(task, ())
        first_ns = gathers_ns[0] if gathers_ns else columns.UNKNOWN
        rows.append((first_ns, sum(gathers_ns), len(buckets), len(buckets_ns)))
        buckets += buckets_ns
    return lane_of, np.array(rows, np.int64).reshape(-1, 4), np.array(buckets, np.int64)


def _stuck(program: PipelineProgram, state: Ints) -> ScheduleError:
    first = program.wires.first
    rank = next(one for one in range(len(state)) if state[one, columns.NEXT] < first[one + 1])
    task = program.tasks(rank)[state[rank, columns.NEXT] - first[rank]]
    return ScheduleError(
        f"Rank {rank} of the pipeline waits for ever at {task.action}; "
        "the order of the others never sends what it reads."
    )


def _ends(program: PipelineProgram, made: _Made) -> list[int]:
    """Return when each rank has its gradients."""
    first, sends = program.wires.first, program.wires.ends[:, 1]
    ends = []
    for rank, (_, free, _, lane_free, *_) in enumerate(made.state.tolist()):
        sent = int(sends[first[rank + 1] - 1]) if program.blocking else -1
        arrived = int(made.over[sent, columns.ARRIVED]) if sent >= 0 else 0
        ends.append(max(free, lane_free, arrived))
    return ends
