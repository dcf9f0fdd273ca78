"""Predictions for the plans of one case: of one rank's program, and of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from simulator.build import built_once
from simulator.case import Case
from simulator.clock import Played, Power, find_clock, settle, summed_burden
from simulator.compiler import Repriced, Totals, repriced
from simulator.cost import CostModel
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.op_table import PlayedSignature, listing_of
from simulator.pipeline.build import Pieces, PipelineBuilder, pieces_of
from simulator.pipeline.orders import Action
from simulator.pipeline.program import PipelineProgram, PipelineRun, makespan_ns
from simulator.pipeline.program import play as play_pipeline
from simulator.plan import SlicePlan
from simulator.schedule import Repeat, Schedule, Segment, Timeline

# Predictions of pipelines -------------------------------------------------------------------------
# The program at its clock, its times, and where they go.


class RankTimes(NamedTuple):
    """Where a rank's time goes, in ns. ``comm_ns``: its collectives and the messages that it waits
    for; ``exposed_ns``: their part with compute idle, ``messages_ns`` of it for messages;
    ``bubble_ns``: it waits for other ranks. What is left, it waits for its host."""

    compute_ns: int
    comm_ns: int
    exposed_ns: int
    messages_ns: int
    bubble_ns: int


@dataclass(frozen=True)
class PlayedPipeline:
    """A plan's pipeline at the clock of ``builder``."""

    case: Case
    builder: PipelineBuilder
    program: PipelineProgram
    power: Power | None = None

    @cached_property
    def makespan_ns(self) -> int:
        """The time of the pipeline, without what is constant in an iteration."""
        return makespan_ns(self.program)

    @cached_property
    def run(self) -> PipelineRun:
        """The times of all tasks and messages."""
        return play_pipeline(self.program)

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """Where each rank's time goes."""
        return tuple(_times_of(rank, self) for rank in range(len(self.program.wires.orders)))

    @property
    def iteration_ns(self) -> int:
        """The time of the iteration."""
        return self.makespan_ns + self.case.constant_ns

    @property
    def totals(self) -> Totals:
        """The iteration's time, and the sums of the busiest rank."""
        one = _times_of(self.case.busiest_rank, self)
        return Totals(self.iteration_ns, one.compute_ns, one.comm_ns, one.exposed_ns, (0,))

    @property
    def busiest(self) -> Played:
        """What the busiest rank plays, without its waits; ``totals`` are of the iteration."""
        pieces, cost = self.builder.pieces, self.builder.cost
        schedule = rank_schedule(pieces, self.case.busiest_rank)
        return Played(repriced(schedule, cost), self.totals, cost, self.power)


def played_pipeline(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> PlayedPipeline:
    """Return the pipeline of ``plan`` at its clock: the one that its busiest rank can have."""
    pieces = pieces_of(case, plan, order)

    def at(cost: CostModel) -> PlayedPipeline:
        builder = PipelineBuilder(pieces, cost)
        return PlayedPipeline(case, builder, builder.program())

    if case.power is None:
        return at(case.cost)
    found, power = find_clock(
        summed_burden(rank_counts(pieces, case.busiest_rank), case.cost, case.power),
        case.power.clocks(case.cluster.clock_mhz),
        lambda clock: at(case.cost.at_clock(clock)),
        lambda one: one.makespan_ns,
    )
    return replace(found, power=power)


def busiest_schedule(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Schedule:
    """Return all ops of the busiest rank in the order of its passes."""
    pieces = pieces_of(case, plan, order)
    rank = case.busiest_rank
    parts = [
        _placed(pieces, rank, action)
        for action in pieces.actions[rank]
        if not (action.beside and action.kind == "B")
    ]
    micros = case.workload.grad_accumulation
    parts += [
        replace(part, first_micro=micros - 1)
        for schedule in pieces.step(rank)
        for part in schedule.parts
    ]
    launch_order = pieces.whole.launch_order
    return Schedule(parts=tuple(parts), micros=micros, launch_order=launch_order)


def _placed(pieces: Pieces, rank: int, action: Action) -> Repeat:
    """Return the ops of a pass, or of a pair, with the numbers of its micro-batches and layers."""
    layers, beside = pieces.first_layer(rank, action.chunk), action.beside
    back = pieces.first_layer(rank, beside.chunk) if beside else 0
    schedule = pieces.schedule(pieces.piece(rank, action))
    return Repeat(
        segments=tuple(moved(one, layers, back) for one in schedule.parts[0].segments),
        first_micro=action.micro,
        lag=action.micro - beside.micro if beside else 1,
    )


def moved(segment: Segment, layers: int, back: int = 0) -> Segment:
    """Return the segment, shifted up by ``layers`` layers; ``back``: by how many those of a pass
    back that is beside it."""
    if segment.mirror >= 0:
        return replace(segment, mirror=segment.mirror + layers)
    paired = segment.paired + layers + back if segment.paired >= 0 else -1
    return replace(segment, first=segment.first + layers, paired=paired)


def rank_schedule(pieces: Pieces, rank: int) -> Schedule:
    """Return all ops of a rank, without its waits for others: what it computes and draws."""
    parts = [
        Repeat(segments=part.segments, count=count)
        for schedule, count in _of_rank(pieces, rank)
        for part in schedule.parts
    ]
    launch_order = pieces.whole.launch_order
    return Schedule(parts=tuple(parts), launch_order=launch_order)


def rank_counts(pieces: Pieces, rank: int) -> dict[PlayedSignature, int]:
    """Return how often each op of ``rank_schedule`` is played, in the order in which they are
    played first."""
    found: dict[PlayedSignature, int] = {}
    for schedule, times in _of_rank(pieces, rank):
        for op, count in listing_of(schedule).counts.items():
            found[op] = found.get(op, 0) + times * count
    return found


def _of_rank(pieces: Pieces, rank: int) -> Iterator[tuple[Schedule, int]]:
    """Yield the schedules that a rank plays, and how often."""
    for piece, count in pieces.counts(rank).items():
        if not (piece.beside and piece.part == "backward"):
            yield pieces.schedule(piece), count
    yield from ((schedule, 1) for schedule in pieces.step(rank))


def _times_of(rank: int, found: PlayedPipeline) -> RankTimes:
    builder, program, run = found.builder, found.program, found.run
    spans, numbers = run.tasks[rank], program.numbers(rank)
    sums = [(builder.played(piece), count) for piece, count in builder.pieces.counts(rank).items()]
    sums += [(one, 1) for one in builder.step(rank)]
    messages = _waits(program, run, rank)
    played = sum(end - start for start, end in spans)
    waited = run.waited_ns[rank]
    replicas = played - waited - int(program.durations_ns[numbers.start : numbers.stop].sum())
    replicas += run.gradients_at[rank] - spans[-1][1] + _late_starts(program, run, rank)
    replicas += program.tied_ns if rank in (0, len(program.wires.orders) - 1) else 0
    on_lane = (program.gathers_ns, program.buckets_ns)
    lane = sum(sum(of[one]) for of in on_lane for one in of if one in numbers)
    alone = sum(one.makespan_ns * count for one, count in sums)
    return RankTimes(
        compute_ns=sum(one.compute_ns * count for one, count in sums),
        comm_ns=sum(one.comm_ns * count for one, count in sums) + max(lane, replicas) + messages,
        exposed_ns=sum(one.exposed_ns * count for one, count in sums) + replicas + messages,
        messages_ns=messages,
        bubble_ns=max(0, run.makespan_ns - alone - replicas - messages - waited),
    )


def _late_starts(program: PipelineProgram, run: PipelineRun, rank: int) -> int:
    """Return by how much gathers of parameters put off the starts of tasks."""
    late, first = 0, program.numbers(rank).start
    wired, spans = program.wires.ranks[rank], run.tasks[rank]
    for index in (one - first for one in program.gathers_ns if one in program.numbers(rank)):
        free = spans[index - 1][1] if index else 0
        if program.blocking and index and wired[index - 1].sends >= 0:
            free = max(free, run.messages[wired[index - 1].sends][1])
        reads = wired[index].reads
        arrived = run.messages[reads][1] if reads >= 0 else 0
        late += max(0, spans[index][0] - max(free, arrived))
    return late


def _waits(program: PipelineProgram, run: PipelineRun, rank: int) -> int:
    """Return the time in which the rank plays nothing while a message of its own is in flight."""
    waited, free, sent = 0, 0, -1
    for task, (start, end) in zip(program.wires.ranks[rank], run.tasks[rank], strict=True):
        numbers = (task.reads, sent if program.blocking else -1)
        spans = [run.messages[number] for number in numbers if number >= 0]
        waited += max(
            (max(0, min(start, over) - max(free, begun)) for begun, over in spans), default=0
        )
        free, sent = end, task.sends
    return waited


def played(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Played:
    """Return the schedule of ``plan`` at its clock, and what the fast engine says of it.

    ``order`` replays a stored order; without it the plan's own order is taken or planned. Of a
    pipeline it is what the busiest rank plays, and the whole iteration's time.
    """
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).busiest
    schedule = scheduled(case, plan, order)
    found = settle(schedule, case.cost, case.power, case.cluster.clock_mhz)
    return replace(found, totals=found.totals.with_constant(case.constant_ns))


def scheduled(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Schedule:
    """Return the schedule of ``plan``; ``order`` as in ``played``."""
    if case.cluster.pp > 1:
        return busiest_schedule(case, plan, order)
    chosen = order or order_of(case, plan)
    return built_once(
        case.model, case.workload, case.cluster, plan, chosen,
        fp8_any_layout=case.profile.machine.fp8_any_layout,
    )  # fmt: skip


def plays_of(case: Case, plan: SlicePlan, order: LayerOrder | None, cost: CostModel) -> Repriced:
    """Return the schedule of ``plan``, compiled for machines like that of ``cost``."""
    return repriced(scheduled(case, plan, order), cost)


def predict(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Totals:
    """Return the fast engine's totals (ns), with its periodic shortcut; see ``played``."""
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).totals
    return played(case, plan, order).totals


def iteration_ns(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return the time of ``predict``, without where a pipeline's goes."""
    if case.cluster.pp > 1:
        return played_pipeline(case, plan, order).iteration_ns
    return played(case, plan, order).totals.makespan_ns


def simulate(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Timeline:
    """Return the full timeline of the engine of record; see ``played``."""
    from simulator.engine import play  # late: few need SimPy

    found = played(case, plan, order)
    return play(found.schedule, found.program)
