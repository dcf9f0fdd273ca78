"""The fast engine with recorded op times: the timeline of simulator.engine in less time.

It plays every repetition, because each has its own times.
"""

from __future__ import annotations

from simulator.op_spans import spans_of_ops
from simulator.program import Program
from simulator.recurrence import Machine
from simulator.schedule import COMPUTE, Schedule
from simulator.timeline import Timeline

Span = tuple[int, int]


def record(schedule: Schedule, program: Program) -> Timeline:
    """Return the timeline of ``program``, which was compiled from ``schedule``. It equals that of
    ``engine.play`` to the nanosecond."""
    recorder = _Recorder(program)
    recorder.run(program.root)
    recorder.drain()
    lane_spans = [iter(spans) for spans in recorder.spans]
    steps = program.root.steps()
    starts, ends = spans_of_ops(steps, [next(lane_spans[step.lane]) for step in steps])
    return Timeline(schedule=schedule, start_ns=starts, end_ns=ends)


class _Recorder(Machine):
    """``spans``: (start, end) of each lane's steps in ns, in issue order; lanes are FIFO."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, shortcut=False)
        self.spans: list[list[Span]] = [[] for _ in range(program.lanes)]
        self._began = [0] * program.lanes

    def _compute(self, work: int, family: int, room: int, *, rest: bool = False) -> None:
        start = self.now
        super()._compute(work, family, room, rest=rest)
        self.spans[COMPUTE].append((start, self.now))

    def _start(self, before_ns: int | None = None, room: int = 0) -> tuple[bool, int]:
        idle = [index for index, flight in enumerate(self.flights) if not flight.work]
        started = super()._start(before_ns, room)
        for index in idle:
            if self.flights[index].work:
                self._began[index] = self.now
        return started

    def _advance(self, elapsed: int, rates: tuple[int, ...]) -> None:
        busy = [index for index, flight in enumerate(self.flights) if flight.work]
        super()._advance(elapsed, rates)
        for index in busy:
            if not self.flights[index].work:
                self.spans[index].append((self._began[index], self.now))
