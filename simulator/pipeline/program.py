"""PipelineProgram: what both engines of a pipeline play, and the fast one.

Rules. A rank plays its tasks in order. A task that reads a message starts when it has come. Where a
task ends, its message goes out. A rendezvous also waits until the receiver is done with the task
before the one that reads it. Messages of one link go one after the other. Where messages block, a
rank's next task starts after its message has arrived.

A rank's data-parallel lane is FIFO: first the gathers of parameters, then the sums of gradients. A
task starts when the first gather of its chunk is done, and ends after the last one. The buckets of
a task become ready at equal distances in it, the last one at its end.

A rank's host goes through the tasks by itself, ahead of the device, and begins one when it has
issued those before it, and its queue has room. A task ends no sooner than ``late_ns`` after its
host began it, and the host has issued it ``issued_ns`` after it began, but, where the device stops
it, no sooner than ``held_ns`` after the task's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.compiler import NEVER_NS
from simulator.cost import CostModel
from simulator.errors import ScheduleError
from simulator.kernels import pipeline as columns
from simulator.kernels.load import call
from simulator.pipeline.orders import LINK, LOWER, Action, Ints, Wiring
from simulator.specs import WGRADS_APART, Workload


class Message(NamedTuple):
    """Data from one rank to another; ``link`` numbers the directed pair of ranks."""

    duration_ns: int
    link: int
    sender: int
    receiver: int


class PipelineTask(NamedTuple):
    """One action and its time alone, behind a host far ahead. ``reads``, ``sends``: numbers of
    messages, −1 for none.

    ``gathers_ns``: of the parameters that it needs first; ``buckets_ns``: of gradients that it
    completes. ``late_ns``, ``issued_ns``, ``held_ns``: as in the module's docstring. ``behind``:
    number of the task that must be done before the host's queue has room for this one, −1 for none.
    """

    action: Action
    duration_ns: int
    reads: int = -1
    sends: int = -1
    gathers_ns: tuple[int, ...] = ()
    buckets_ns: tuple[int, ...] = ()
    late_ns: int = 0
    issued_ns: int = 0
    held_ns: int = NEVER_NS
    behind: int = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineProgram:
    """The tasks of each rank, and the messages between them, over ``wires``, which number them.

    ``passes``: ``duration_ns``, ``late_ns``, ``issued_ns`` and ``held_ns`` of the different
    passes, a row a pass; ``of_task``: each task's row; ``behind``: as of a ``PipelineTask``.
    ``message_ns``: of each message. ``gathers_ns``, ``buckets_ns``: of the tasks that have some.
    ``rendezvous``, ``blocking``: as in the module's docstring.
    ``summed_ns``: each rank's way from its last gradient to the norm's sum over all ranks.
    ``tied_ns``: the sum of a tied table's gradient between the first and the last rank, before it.
    ``updated_ns``: each rank's way from there to its new parameters.
    """

    wires: Wiring
    passes: Ints
    of_task: Ints
    behind: Ints
    message_ns: Ints
    gathers_ns: Mapping[int, tuple[int, ...]]
    buckets_ns: Mapping[int, tuple[int, ...]]
    rendezvous: bool
    blocking: bool
    summed_ns: tuple[int, ...]
    updated_ns: tuple[int, ...]
    tied_ns: int = 0

    @cached_property
    def ranks(self) -> tuple[tuple[PipelineTask, ...], ...]:
        """The tasks of each rank."""
        return tuple(self.tasks(rank) for rank in range(len(self.wires.orders)))

    @property
    def durations_ns(self) -> Ints:
        """The time of each task alone."""
        found: Ints = self.passes[self.of_task, 0]
        return found

    def numbers(self, rank: int) -> range:
        """Return the numbers of a rank's tasks."""
        first = self.wires.first
        return range(int(first[rank]), int(first[rank + 1]))

    def tasks(self, rank: int) -> tuple[PipelineTask, ...]:
        """Return the tasks of a rank."""
        found = []
        for number, one in zip(self.numbers(rank), self.wires.ranks[rank], strict=True):
            duration_ns, late_ns, issued_ns, held_ns = self.passes[self.of_task[number]].tolist()
            found.append(
                PipelineTask(
                    one.action, duration_ns, one.reads, one.sends,
                    self.gathers_ns.get(number, ()), self.buckets_ns.get(number, ()),
                    late_ns, issued_ns, held_ns, int(self.behind[number]),
                )
            )  # fmt: skip
        return tuple(found)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages."""
        return tuple(
            Message(duration_ns, *wire[:3])
            for duration_ns, wire in zip(self.message_ns.tolist(), self.wires.messages, strict=True)
        )

    @property
    def links(self) -> int:
        """Number of directed links."""
        return int(self.wires.links[:, LINK].max(initial=-1)) + 1

    def step_end(self, gradients_at: list[int]) -> int:
        """Return when all ranks have new parameters; ``gradients_at``: when each has its
        gradients."""
        ready = list(gradients_at)
        if self.tied_ns:
            ready[0] = ready[-1] = max(ready[0], ready[-1]) + self.tied_ns
        ready = [at + summed for at, summed in zip(ready, self.summed_ns, strict=True)]
        return max(ready) + max(self.updated_ns)


def sends_beside(workload: Workload) -> bool:
    """Return whether messages run beside compute, and no host waits for one."""
    return workload.overlap_p2p or workload.pp_schedule in WGRADS_APART


def hosts_lead(workload: Workload, cost: CostModel) -> bool:
    """Return whether hosts may be passes ahead of their devices."""
    return sends_beside(workload) and cost.launch.mode == "async"


class PipelineRun(NamedTuple):
    """Times of a played program, in ns: (start, end) of each task of each rank, of each message,
    and when each rank's gradients are summed; ``waited_ns``: by how much each rank's host makes its
    tasks longer."""

    tasks: tuple[tuple[tuple[int, int], ...], ...]
    messages: tuple[tuple[int, int], ...]
    gradients_at: tuple[int, ...]
    makespan_ns: int
    waited_ns: tuple[int, ...]


# The fast engine of pipelines ---------------------------------------------------------------------
# The kernel of ``simulator.kernels.pipeline`` over a program.


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
    """Return the number of each task's row on the data-parallel lane, these rows, and the buckets
    of all tasks."""
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
