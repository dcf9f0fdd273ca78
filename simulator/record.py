"""The fast engine with recorded op times: the timeline of simulator.engine in less time.

Periods that the engine skips are copied from the one before them, each ``elapsed`` ns later.
"""

from __future__ import annotations

from simulator.op_spans import spans_of_ops
from simulator.program import Program
from simulator.recurrence import Flight, Machine, Mark
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
    """``spans``: (start, end) of each lane's steps in ns, in issue order; lanes are FIFO. A lane
    has as many of them as steps that are ``done``."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, shortcut=True)
        self.spans: list[list[Span]] = [[] for _ in range(program.lanes)]

    def _compute(self, work: int, family: int, room: int, *, rest: bool = False) -> None:
        start = self.now
        super()._compute(work, family, room, rest=rest)
        self.flights[COMPUTE].done += 1
        self.spans[COMPUTE].append((start, self.now))

    def _end(self, lane: int, flight: Flight, end_ns: int) -> None:
        super()._end(lane, flight, end_ns)
        self.spans[lane].append((flight.began_ns, end_ns))

    def _state(self) -> tuple[object, ...]:
        """Return the state with when each collective in flight began: its span ends later."""
        began = (self.now - one.began_ns if one.work else None for one in self.comm_flights)
        return *began, *super()._state()

    def _skip(self, mark: Mark, repetition: int, remaining: int, nested: bool) -> int:
        end_ns, done = self.now, mark.sums[-len(self.flights) :]
        skipped = super()._skip(mark, repetition, remaining, nested)
        elapsed, times = end_ns - mark.host.now_ns, skipped // (repetition - mark.repetition)
        shifts = [number * elapsed for number in range(1, times + 1)]
        for spans, count in zip(self.spans, done, strict=True):
            period = spans[count:]
            spans += [(start + shift, end + shift) for shift in shifts for start, end in period]
        for flight in self.comm_flights:
            flight.began_ns += times * elapsed
        return skipped
