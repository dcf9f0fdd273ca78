"""The fast engine of pipelines: a recurrence over the tasks, with the rules of ``program``."""

from __future__ import annotations

from simulator.errors import ScheduleError
from simulator.pipeline.program import PipelineProgram, PipelineRun, Task

_UNKNOWN = -1


def play(program: PipelineProgram) -> PipelineRun:
    """Return the times of ``program``. Raise ScheduleError where ranks wait for each other."""
    player = _Player(program)
    ready = dict.fromkeys(range(len(program.ranks)))  # first come, first served, each once
    while ready:
        rank = next(iter(ready))
        del ready[rank]
        for woken in player.advance(rank):
            ready[woken] = None
    return player.run()


class _Player:
    """Ranks advance as far as known times allow; a message that becomes known lets others go on."""

    def __init__(self, program: PipelineProgram) -> None:
        self.program = program
        ranks, messages = len(program.ranks), len(program.messages)
        self.spans: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self.free = [0] * ranks
        self.posted = [False] * ranks
        self.lane_free = [0] * ranks
        self.gathered: list[dict[int, tuple[int, int]]] = [{} for _ in range(ranks)]
        self.sent = [_UNKNOWN] * messages
        self.awaited = [_UNKNOWN if program.rendezvous else 0] * messages
        self.arrived = [_UNKNOWN] * messages
        self.started = [0] * messages
        self.link_free = [0] * program.links
        for rank in range(ranks):
            self._gather(rank)

    def _gather(self, rank: int) -> None:
        for index, task in enumerate(self.program.ranks[rank]):
            if task.gathers_ns:
                first = self.lane_free[rank] + task.gathers_ns[0]
                self.lane_free[rank] += sum(task.gathers_ns)
                self.gathered[rank][index] = first, self.lane_free[rank]

    def advance(self, rank: int) -> list[int]:
        """Play the rank's next tasks; return the ranks that may go on now."""
        tasks, spans, arrived = self.program.ranks[rank], self.spans[rank], self.arrived
        blocking, woken = self.program.blocking, list[int]()
        last_sends = tasks[len(spans) - 1].sends if spans else -1
        for index in range(len(spans), len(tasks)):
            task = tasks[index]
            if not self.posted[rank]:
                self.posted[rank] = True
                woken += self._posts(rank, task)
            start = self.free[rank]
            for message in (task.reads, last_sends if blocking else -1):
                if message >= 0:
                    if arrived[message] == _UNKNOWN:
                        return woken
                    start = max(start, arrived[message])
            span = self._play(rank, index, task, start)
            spans.append(span)
            self.posted[rank] = False
            last_sends = task.sends
            if last_sends >= 0:
                self.sent[last_sends] = span[1]
                woken += self._deliver(last_sends)
        return woken

    def _posts(self, rank: int, task: Task) -> list[int]:
        """Post the receive of the rank's next task; return the ranks that may go on."""
        if task.reads < 0 or self.awaited[task.reads] != _UNKNOWN:
            return []
        self.awaited[task.reads] = self.free[rank]
        return self._deliver(task.reads)

    def _deliver(self, number: int) -> list[int]:
        """Send the message if both its ends are known; return those that wait for it."""
        if self.sent[number] == _UNKNOWN or self.awaited[number] == _UNKNOWN:
            return []
        message = self.program.messages[number]
        start = max(self.sent[number], self.awaited[number], self.link_free[message.link])
        self.started[number] = start
        self.arrived[number] = self.link_free[message.link] = start + message.duration_ns
        return [message.receiver, message.sender]

    def _play(self, rank: int, index: int, task: Task, start: int) -> tuple[int, int]:
        end = start + task.duration_ns
        if task.gathers_ns:
            first, last = self.gathered[rank][index]
            start = max(start, first)
            end = max(start + task.duration_ns, last)
        self.free[rank] = end
        for number, bucket_ns in enumerate(task.buckets_ns, 1):
            ready = start + task.duration_ns * number // len(task.buckets_ns)
            self.lane_free[rank] = max(self.lane_free[rank], ready) + bucket_ns
        return start, end

    def run(self) -> PipelineRun:
        """Return the times. Raise ScheduleError unless every task was played."""
        for rank, (spans, tasks) in enumerate(zip(self.spans, self.program.ranks, strict=True)):
            if len(spans) < len(tasks):
                raise ScheduleError(
                    f"Rank {rank} of the pipeline waits for ever at {tasks[len(spans)].action}; "
                    "the order of the others never sends what it reads."
                )
        ends = []
        for rank, tasks in enumerate(self.program.ranks):
            sends = tasks[-1].sends if self.program.blocking else -1
            sent = self.arrived[sends] if sends >= 0 else 0
            ends.append(max(self.free[rank], self.lane_free[rank], sent))
        return PipelineRun(
            tuple(tuple(rank) for rank in self.spans),
            tuple(zip(self.started, self.arrived, strict=True)),
            tuple(ends),
            self.program.step_end(ends),
        )
