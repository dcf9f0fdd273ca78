"""Record: the timeline of a program by the compiled player, in less time than by SimPy."""

from __future__ import annotations

from simulator.kernels.program_arrays import arrays_of
from simulator.op_spans import spans_of_ops
from simulator.program import Program
from simulator.schedule import Schedule
from simulator.timeline import Timeline


def record(schedule: Schedule, program: Program) -> Timeline:
    """Return the timeline of ``program``, which was compiled from ``schedule``. It equals that of
    ``engine.play`` to the nanosecond."""
    arrays, pricing = arrays_of(program)
    lane_spans = [iter(spans) for spans in arrays.record(pricing)]
    steps = program.root.steps()
    starts, ends = spans_of_ops(steps, [next(lane_spans[step.lane]) for step in steps])
    return Timeline(schedule=schedule, start_ns=starts, end_ns=ends)
