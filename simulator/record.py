"""The fast engine with recorded op times: the timeline of simulator.engine in less time.

It plays every repetition, because each has its own times.
"""

from __future__ import annotations

from simulator.op_spans import spans_of_ops
from simulator.program import Program
from simulator.recurrence import Flight, Machine
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

    def _compute(self, work: int, family: int, room: int, *, rest: bool = False) -> None:
        start = self.now
        super()._compute(work, family, room, rest=rest)
        self.spans[COMPUTE].append((start, self.now))

    def _end(self, lane: int, flight: Flight, end_ns: int) -> None:
        super()._end(lane, flight, end_ns)
        self.spans[lane].append((flight.began_ns, end_ns))
