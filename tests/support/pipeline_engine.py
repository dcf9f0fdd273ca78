"""The engine of record of pipelines: SimPy plays the tasks, one process per rank.

It has the rules of ``simulator.pipeline.program``, and agrees with it to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from simulator.pipeline.program import PipelineProgram, PipelineRun, PipelineTask

_Process = Generator[simpy.Event, Any, None]


def play(program: PipelineProgram) -> PipelineRun:
    """Return the times of ``program``, in which no ranks may wait for each other."""
    engine = _Engine(program)
    engine.env.run(until=engine.env.process(engine.iteration()))
    return PipelineRun(
        tuple(tuple(spans) for spans in engine.spans),
        tuple(engine.message_spans),
        tuple(engine.gradients_at),
        int(engine.env.now),
        tuple(engine.waited_ns),
    )


class _Engine:
    def __init__(self, program: PipelineProgram) -> None:
        self.env = env = simpy.Environment()
        self.program = program
        ranks = range(len(program.ranks))
        self.spans: list[list[tuple[int, int]]] = [[] for _ in ranks]
        self.message_spans = [(0, 0)] * len(program.messages)
        self.sent = [env.event() for _ in program.messages]
        self.awaited = [env.event() for _ in program.messages]
        self.arrived = [env.event() for _ in program.messages]
        self.links = [simpy.Resource(env) for _ in range(program.links)]
        self.lanes = [simpy.Resource(env) for _ in ranks]
        self.gradients_at = [0] * len(ranks)
        self.waited_ns = [0] * len(ranks)

    def iteration(self) -> _Process:
        """Play all ranks, then the optimizer's step."""
        env, program = self.env, self.program
        for number in range(len(program.messages)):
            env.process(self._message(number))
        done = [env.process(self._rank(rank)) for rank in range(len(program.ranks))]
        summed = [env.process(self._step(rank, done)) for rank in range(len(program.ranks))]
        yield simpy.AllOf(env, summed)
        yield env.timeout(max(program.updated_ns))

    def _step(self, rank: int, done: list[simpy.Process]) -> _Process:
        """Sum the tied table's gradient with the other rank that has it, then take the norm."""
        program, ends = self.program, {0, len(done) - 1}
        tied = program.tied_ns and rank in ends
        yield simpy.AllOf(self.env, [done[end] for end in ends] if tied else [done[rank]])
        yield self.env.timeout(program.summed_ns[rank] + (program.tied_ns if tied else 0))

    def _rank(self, rank: int) -> _Process:
        env, tasks = self.env, self.program.ranks[rank]
        gathers = [[self._on_lane(rank, ns) for ns in task.gathers_ns] for task in tasks]
        sums: list[simpy.Event] = []
        host = 0
        first = self.program.numbers(rank).start
        for index, (task, gathered) in enumerate(zip(tasks, gathers, strict=True)):
            self._post(task)
            if task.reads >= 0:
                yield self.arrived[task.reads]
            if gathered:
                yield gathered[0]
            start = int(env.now)
            if task.behind >= 0:
                host = max(host, self.spans[rank][task.behind - first][1])
            late_ns = max(0, host + task.late_ns - start - task.duration_ns)
            self.waited_ns[rank] += late_ns
            host = max(host + task.issued_ns, start + task.held_ns)
            task = task._replace(duration_ns=task.duration_ns + late_ns)
            sums += [self._bucket(rank, task, number) for number in range(len(task.buckets_ns))]
            yield env.timeout(task.duration_ns)
            yield simpy.AllOf(env, gathered)
            self.spans[rank].append((start, int(env.now)))
            if task.sends >= 0:
                self.sent[task.sends].succeed()
                if self.program.blocking:
                    if index + 1 < len(tasks):
                        self._post(tasks[index + 1])
                    yield self.arrived[task.sends]
        yield simpy.AllOf(env, sums)
        self.gradients_at[rank] = int(env.now)

    def _post(self, task: PipelineTask) -> None:
        """Post the receive of the message that ``task`` reads, at most once."""
        if task.reads >= 0 and not self.awaited[task.reads].triggered:
            self.awaited[task.reads].succeed()

    def _message(self, number: int) -> _Process:
        yield self.sent[number]
        if self.program.rendezvous:
            yield self.awaited[number]
        message = self.program.messages[number]
        with self.links[message.link].request() as link:
            yield link
            start = int(self.env.now)
            yield self.env.timeout(message.duration_ns)
        self.message_spans[number] = start, int(self.env.now)
        self.arrived[number].succeed()

    def _bucket(self, rank: int, task: PipelineTask, number: int) -> simpy.Process:
        """Sum a bucket of the task that starts now, once its gradients are there."""
        count = len(task.buckets_ns)
        ready_ns = task.duration_ns * (number + 1) // count
        return self._on_lane(rank, task.buckets_ns[number], ready_ns)

    def _on_lane(self, rank: int, duration_ns: int, ready_ns: int = 0) -> simpy.Process:
        """Occupy the rank's data-parallel lane, ``ready_ns`` from now."""

        def occupy() -> _Process:
            if ready_ns:
                yield self.env.timeout(ready_ns)
            with self.lanes[rank].request() as lane:
                yield lane
                yield self.env.timeout(duration_ns)

        return self.env.process(occupy())
