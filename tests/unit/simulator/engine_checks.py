"""What must hold between the engines, as functions of a seed: tests run a few, the bench all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.compiler import Totals, compile_program, repriced
from simulator.compiler import record as of_schedule
from simulator.contention import Contention
from simulator.engine import play
from simulator.program import Program, spans_of_ops
from simulator.schedule import COMPUTE, Op, Schedule, Segment, Timeline
from tests.support.by_hand import record, totals
from tests.unit.simulator.admission_scheduler import admission_schedule
from tests.unit.simulator.dags import random_dag
from tests.unit.simulator.list_scheduler import Placed, covered_ns, list_schedule
from tests.unit.simulator.programs import program_schedule, random_program


def totals_of(lanes: Sequence[int], spans: Sequence[tuple[int, int]], count: int) -> Totals:
    """Sums of a timeline given as lane and span of each op; there are ``count`` lanes."""
    compute = [span for lane, span in zip(lanes, spans, strict=True) if lane == COMPUTE]
    comm = [span for lane, span in zip(lanes, spans, strict=True) if lane != COMPUTE]
    busy = covered_ns(compute)
    sums = [0] * count
    for lane, (start, end) in zip(lanes, spans, strict=True):
        sums[lane] += end - start
    sums[COMPUTE] = 0  # the recurrence keeps it in compute_ns
    return Totals(
        max((end for _, end in spans), default=0), busy, covered_ns(comm),
        covered_ns([*compute, *comm]) - busy, tuple(sums),
    )  # fmt: skip


def check_engines_agree(seed: int) -> None:
    """Both engines on a random program, with contention; the shortcut changes nothing."""
    program = random_program(seed)
    schedule = program_schedule(program)
    timeline = play(schedule, program)
    whole = totals(program, shortcut=False)
    assert whole == _timeline_totals(timeline, program)
    assert totals(program) == whole
    assert record(schedule, program) == timeline


def check_admission(seed: int) -> None:
    """Both engines on a random program without contention and host: the independent scheduler's
    start and end of every op."""
    drawn = random_program(seed)
    program = replace(drawn, contention=Contention(None), resume=None, queue_depth=0)
    steps = program.root.steps()
    spans = admission_schedule(steps, program.lanes, program.launch_order)
    expected = spans_of_ops(steps, spans)
    schedule = program_schedule(program)
    timeline = play(schedule, program)
    assert (timeline.start_ns, timeline.end_ns) == expected
    assert record(schedule, program) == timeline
    assert totals(program) == _timeline_totals(timeline, program)


def check_dag(seed: int) -> None:
    """Both engines on a random DAG without contention: the list scheduler's start and end."""
    dag = random_dag(seed)
    ops = list(dag.schedule.ops())
    _check_is_legal(ops)
    launch = dag.cost.launch
    launches = [launch.cost_ns.get(op.signature.kind, 0) for op in ops]
    durations = [dag.cost.awake_ns(op.signature) for op in ops]
    idle = [dag.cost.idle_times(op.signature) for op in ops]
    if launch.mode == "inline":
        for index, op in enumerate(ops):
            if op.lane == COMPUTE:
                durations[index] += launches[index]
            else:
                idle[index] = idle[index]._replace(wake_ns=idle[index].wake_ns + launches[index])
    depth = launch.queue_depth if launch.mode == "async" else 0
    expected = list_schedule(ops, durations, launches, depth, dag.cost.cpu.resume, idle)
    program = compile_program(dag.schedule, dag.cost)
    timeline = play(dag.schedule, program)
    assert of_schedule(repriced(dag.schedule, dag.cost), dag.cost) == timeline
    got = [Placed(*span) for span in zip(timeline.start_ns, timeline.end_ns, strict=True)]
    assert got == expected
    whole = totals_of([op.lane for op in ops], expected, program.lanes)
    assert totals(program, shortcut=False) == whole
    assert totals(program) == whole


def check_contended_dag(seed: int) -> None:
    """Both engines on a random DAG with contention and skew; loops change nothing."""
    dag = random_dag(seed, contention=True)
    program = compile_program(dag.schedule, dag.cost)
    whole = totals(program, shortcut=False)
    timeline = play(dag.schedule, program)
    assert whole == _timeline_totals(timeline, program)
    assert of_schedule(repriced(dag.schedule, dag.cost), dag.cost) == timeline
    assert totals(program) == whole
    flat = compile_program(unrolled(dag.schedule), dag.cost)
    assert flat.root.steps() == program.root.steps()


def unrolled(schedule: Schedule) -> Schedule:
    """The same, every repetition of a segment a segment of its own."""
    parts = tuple(
        replace(part, segments=tuple(one for s in part.segments for one in _repetitions(s)))
        for part in schedule.parts
    )
    return replace(schedule, parts=parts)


def _repetitions(segment: Segment) -> list[Segment]:
    return [
        replace(segment, count=1, first=segment.first + number * segment.stride)
        for number in range(segment.count)
    ]


def _check_is_legal(ops: Sequence[Op]) -> None:
    """Names and values are unique, and what is read before it is written is never written."""
    assert len({op.name for op in ops}) == len(ops)
    written: set[str] = set()
    inputs: set[str] = set()
    for op in ops:
        inputs |= set(op.reads) - written
        assert written.isdisjoint(op.writes)
        assert inputs.isdisjoint(op.writes)
        written |= set(op.writes)


def _timeline_totals(timeline: Timeline, program: Program) -> Totals:
    lanes = [op.lane for op in timeline.ops]
    spans = list(zip(timeline.start_ns, timeline.end_ns, strict=True))
    return totals_of(lanes, spans, program.lanes)
