"""From a case and a plan to the pipeline's program: chunks are played, messages priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Final, Literal, NamedTuple

import numpy as np

from simulator.build import Builder, check_order_of
from simulator.case import Case, Chunk, chunks_of_ranks, joined, place, stage_of
from simulator.compiler import NEVER_NS, Led, Totals, repriced
from simulator.cost import CostModel
from simulator.fragments import Fragments
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.ops import Collective
from simulator.optimizer import (
    NORMS,
    gradient_passes,
    layers_per_bucket,
    summed_gradients,
    update,
)
from simulator.overlap import EP_OVERLAP
from simulator.overlapped import paired
from simulator.pipeline.orders import LOWER, Action, Ints, Orders, Wiring, wiring
from simulator.pipeline.program import PipelineProgram, hosts_lead, sends_beside
from simulator.plan import MEGATRON, SlicePlan
from simulator.schedule import OpTemplate, Repeat, Schedule, Segment, parted
from simulator.shapes import Shapes
from simulator.sharding import Held
from simulator.templates import Templates

Pass = Literal["forward", "backward", "dgrad", "wgrad"]
Ranks = tuple[tuple[Chunk, ...], ...]
"""The chunks of each rank."""
PASSES: Final[dict[str, Pass]] = {"F": "forward", "B": "backward", "I": "dgrad", "W": "wgrad"}
NOTHING: Final = Totals(0, 0, 0, 0, (0,))


class Piece(NamedTuple):
    """A pass of a chunk; ``first``: of the iteration's first micro-batch. ``beside``: the pass of
    the other kind that runs together with it."""

    chunk: Chunk
    part: Pass
    first: bool
    beside: Piece | None = None

    @property
    def pair(self) -> tuple[Piece, Piece]:
        """The forward and the backward of a pair, each alone."""
        assert self.beside is not None
        passes = self._replace(beside=None), self.beside
        return passes if self.part == "forward" else passes[::-1]


@dataclass(frozen=True, eq=False)
class NumberedPasses:
    """The different passes of a pipeline, and the number of each task's."""

    pieces: tuple[Piece, ...]
    of_task: Ints


def piece_of(ranks: Ranks, rank: int, action: Action, firsts: Mapping[str, int]) -> Piece:
    """Return the pass that an action plays. ``firsts``: the micro-batch of a chunk's first pass, by
    kind, where that differs from the others."""
    part, chunk = PASSES[action.kind], ranks[rank][action.chunk]
    piece = Piece(chunk, part, firsts.get(action.kind) == action.micro)
    if action.beside is None:
        return piece
    other = Action("B" if action.kind == "F" else "F", *action.beside)
    return piece._replace(beside=piece_of(ranks, rank, other, firsts))


@lru_cache(maxsize=64)
def _numbered(wires: Wiring, ranks: Ranks, firsts: tuple[tuple[str, int], ...]) -> NumberedPasses:
    numbers: dict[Piece, int] = {}
    known = dict(firsts)
    of_kind = [
        numbers.setdefault(piece_of(ranks, rank, action, known), len(numbers))
        for rank, action in wires.kinds.firsts
    ]
    return NumberedPasses(tuple(numbers), np.array(of_kind, np.int64)[wires.kinds.of_task])


def pieces_of(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Pieces:
    """Return the passes of a plan, which time, memory and drawn machines share."""
    return _pieces_of(case.shapes(plan), order or order_of(case, plan))


@lru_cache(maxsize=16)
def _pieces_of(whole: Shapes, order: LayerOrder) -> Pieces:
    check_order_of(whole, order)
    return Pieces(whole, order)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The passes of a plan's chunks as schedules, each made once; ``whole``: shapes of the whole
    model."""

    whole: Shapes
    order: LayerOrder
    _made: dict[Piece, Schedule] = field(default_factory=dict)
    _steps: dict[Chunk, tuple[Schedule, Schedule]] = field(default_factory=dict)
    _passes: dict[Held, Schedule] = field(default_factory=dict)
    _buckets: dict[tuple[Chunk, bool], list[Held]] = field(default_factory=dict)
    _shapes: dict[Chunk, Shapes] = field(default_factory=dict)

    def shapes(self, chunk: Chunk) -> Shapes:
        """Return the shapes of a chunk."""
        if chunk not in self._shapes:
            self._shapes[chunk] = chunk.of(self.whole)
        return self._shapes[chunk]

    @cached_property
    def ranks(self) -> Ranks:
        """The chunks of each rank."""
        return chunks_of_ranks(self.whole.model, self.whole.workload, self.whole.cluster)

    @cached_property
    def wires(self) -> Wiring:
        """The passes of each rank, and the messages between them."""
        work, cluster = self.whole.workload, self.whole.cluster
        pairs = self.whole.plan.strategy == EP_OVERLAP
        micros = work.grad_accumulation
        return wiring(work.pp_schedule, cluster.pp, cluster.vpp, micros, pairs=pairs)

    @property
    def actions(self) -> Orders:
        """The actions of each rank."""
        return self.wires.orders

    @cached_property
    def numbered(self) -> NumberedPasses:
        """The different passes, and the number of each task's."""
        return _numbered(self.wires, self.ranks, tuple(self._firsts.items()))

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange data at all: not in the bound."""
        return self.whole.plan.strategy != "no_comm"

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """The kinds of passes that a micro-batch takes through a chunk, there and back."""
        parts = {piece.part for piece in self.numbered.pieces}
        kinds = {kind for kind, part in PASSES.items() if part in parts}
        return tuple(way for way in ("FB", "FIW") if kinds.issuperset(way))

    def first_layer(self, rank: int, number: int) -> int:
        """Return how many layers of the model precede a rank's chunk."""
        pp, schedule = len(self.ranks), self.whole.workload.pp_schedule
        places = [place(k, pp, schedule) for k in range(stage_of(rank, number, pp, schedule))]
        return sum(self.ranks[of][chunk].layers for of, chunk in places)

    @property
    def message_bytes(self) -> int:
        """Bytes that a stage sends to the next one for each micro-batch."""
        return self.whole.residual_bytes(-1)

    def piece(self, rank: int, action: Action) -> Piece:
        """Return the pass that an action plays."""
        return piece_of(self.ranks, rank, action, self._firsts)

    @cached_property
    def _firsts(self) -> dict[str, int]:
        """The kinds of passes whose first of each chunk differs from the others, and its
        micro-batch: a forward where it clears the gradients, so that all backwards add, else the
        backwards. GPipe goes back from the last one."""
        work = self.whole.workload
        if work.implementation.zero_grads:
            return {"F": 0}
        first = work.grad_accumulation - 1 if work.pp_schedule == "gpipe" else 0
        return dict.fromkeys("BIW", first)

    def counts(self, rank: int) -> dict[Piece, int]:
        """Return how often a rank plays each pass, in the order in which it plays them first."""
        numbered, (first, end) = self.numbered, self.wires.first[rank : rank + 2].tolist()
        counts = Counter(numbered.of_task[first:end].tolist())
        return {numbered.pieces[number]: count for number, count in counts.items()}

    def schedule(self, piece: Piece) -> Schedule:
        """Return the ops of a pass."""
        if piece not in self._made:
            self._made[piece] = self._schedule(piece)
        return self._made[piece]

    def _schedule(self, piece: Piece) -> Schedule:
        """Return the ops of a pass, or of a pair of them."""
        if piece.beside is not None:
            return self._paired(*piece.pair)
        builder = Builder(self.shapes(piece.chunk), self.order, in_pipeline=True)
        fragments, ahead = builder.fragments(first=piece.first), piece.part == "forward"
        order = self.order.forward if ahead else self.order.backward
        cut = builder.shapes.pieces(backward=not ahead), builder.shapes.launch_order
        key = Schedule, piece.part, piece.first, order, *cut
        make = partial(_of_piece, builder, fragments, piece)
        return builder.once(fragments, key, make, begins=piece.first)

    def _paired(self, ahead: Piece, back: Piece) -> Schedule:
        forward, backward = (self.schedule(one) for one in (ahead, back))
        delays, shared = self.whole.plan.wgrad == "deferred", forward.shared
        key = paired, id(forward), id(backward), delays
        if key not in shared:
            segments = paired(
                forward.parts[0].segments, backward.parts[0].segments,
                (ahead.chunk.layers, back.chunk.layers), shared, delays_wgrads=delays,
            )  # fmt: skip
            whole = replace(forward, parts=(Repeat(segments=tuple(segments)),))
            shared[key] = whole, forward, backward  # which stay, with their ids
        found: Schedule = shared[key][0]
        return found

    def step(self, rank: int) -> tuple[Schedule, Schedule]:
        """Return a rank's ops up to the norm's sum over all ranks, and from there on."""
        chunk = joined(self.ranks[rank])
        if chunk not in self._steps:
            self._steps[chunk] = _steps_of(_in_step(self.shapes(chunk)))
        return self._steps[chunk]

    def step_shapes(self, rank: int) -> Shapes:
        """Return the shapes of all chunks of a rank."""
        return self.shapes(joined(self.ranks[rank]))

    def passes(self, held: Held) -> Schedule:
        """Return the passes over a bucket's gradients before its sum."""
        if held not in self._passes:
            t = Templates(shapes=self.whole)
            self._passes[held] = _schedule_of(gradient_passes(t, "dp", held, ()))
        return self._passes[held]

    def bucket_sizes(self, rank: int, number: int) -> list[Held]:
        """Return the parameters of each bucket of a chunk, in the order in which backward completes
        them. Only the first chunk of the first rank has several, as in Megatron-LM."""
        key = self.ranks[rank][number], rank == number == 0
        if key not in self._buckets:
            sizes = self._bucket_sizes(self.shapes(key[0]), several=key[1])
            if key[0].head:
                sizes[-1] += Held(-self._tables_twice(rank))
            self._buckets[key] = sizes
        return self._buckets[key]

    def _tables_twice(self, rank: int) -> int:
        """Return the parameters of tables that two chunks of a rank share."""
        each = sum(self.shapes(chunk).held.rest for chunk in self.ranks[rank])
        return each - self.step_shapes(rank).held.rest

    def _bucket_sizes(self, shapes: Shapes, *, several: bool) -> list[Held]:
        if not several:
            return [shapes.held]
        sizes, rest = list[Held](), Held(shapes.edge_parameters)
        for layers, one in reversed(shapes.kinds):
            each = min(layers, layers_per_bucket(one, 1))
            sizes += [one.layer * each] * (layers // each)
            rest += one.layer * (layers % each)
        return [*sizes, rest] if rest.whole else sizes


def _in_step(shapes: Shapes) -> Shapes:
    """Return ``shapes`` with nothing that an optimizer's step does not depend on: how passes are
    sliced, and what they compute again."""
    plan = replace(
        MEGATRON, strategy="megatron" if shapes.plan.strategy != "no_comm" else "no_comm",
        comm_ctas=shapes.plan.comm_ctas, sequence_parallel=shapes.plan.sequence_parallel,
    )  # fmt: skip
    work = replace(shapes.workload, recompute="none", recompute_modules=(), recompute_layers=0)
    return replace(shapes, plan=plan, workload=work)


@lru_cache(maxsize=64)
def _steps_of(shapes: Shapes) -> tuple[Schedule, Schedule]:
    """Return the two schedules of ``Pieces.step``."""
    t, work = Templates(shapes=shapes), shapes.workload
    ops: list[OpTemplate] = []
    # Without communication the passes before the sums are gone, too: they run in the buckets.
    if not (shapes.replicas > 1 and work.overlap_grad_reduce):
        ops += summed_gradients(t, shapes.held, ())
    gathers = shapes.reduces and shapes.shards_optimizer and not work.overlap_param_gather
    ops += update(t, tuple(ref for op in ops[-1:] for ref in op.writes), gathers=gathers)
    cut = next(index for index, op in enumerate(ops) if op.role in NORMS)
    return _schedule_of(ops[:cut]), _schedule_of(ops[cut:])


def _schedule_of(ops: list[OpTemplate]) -> Schedule:
    segments = [Segment(templates=tuple(ops))] if ops else []
    return Schedule(parts=(Repeat(segments=tuple(segments)),))


def _of_piece(builder: Builder, fragments: Fragments, piece: Piece) -> Schedule:
    """Return the ops of a pass that runs alone."""
    if piece.part == "forward":
        segments = builder.forward(fragments, first=piece.first)
    else:
        segments = builder.backward(fragments, last=False)
    if piece.part in ("dgrad", "wgrad"):
        segments = parted(segments, wgrads=piece.part == "wgrad")
    parts = (Repeat(segments=tuple(segments)),)
    return Schedule(parts=parts, launch_order=builder.shapes.launch_order, shared=fragments.shared)


class ReplicaTimes(NamedTuple):
    """Times of a chunk's ops on the data-parallel lane: gathers of its parameters, with which an
    iteration begins, and sums of its gradients over the replicas."""

    gathers_ns: tuple[int, ...]
    buckets_ns: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PipelineBuilder:
    """Builder of a plan's pipeline at the clock of ``cost``."""

    pieces: Pieces
    cost: CostModel
    _played: dict[int, Totals] = field(default_factory=dict)
    _lanes: dict[int, ReplicaTimes] = field(default_factory=dict)
    _led: dict[Piece, Led] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether hosts may be passes ahead."""
        return hosts_lead(self.pieces.whole.workload, self.cost)

    def program(self) -> PipelineProgram:
        """Return the pipeline's program."""
        cluster, overlaps = self.pieces.whole.cluster, sends_beside(self.pieces.whole.workload)
        wires, numbered = self.pieces.wires, self.pieces.numbered
        groups = [cluster.p2p_group(lower) for lower in range(cluster.pp)]
        each_ns = {group: self._message_ns(*group) for group in dict.fromkeys(groups)}
        between_ns = np.array([each_ns[group] for group in groups], np.int64)
        steps = [self.step(rank) for rank in range(cluster.pp)]
        return PipelineProgram(
            wires=wires,
            passes=np.array([self._pass(piece) for piece in numbered.pieces], np.int64),
            of_task=numbered.of_task,
            behind=self._behind(),
            message_ns=between_ns[wires.links[:, LOWER]],
            gathers_ns=_some({one.task: self._lane(*one[1:]).gathers_ns for one in wires.starting}),
            buckets_ns=_some({one.task: self._lane(*one[1:]).buckets_ns for one in wires.ending}),
            blocking=not overlaps,
            rendezvous=not overlaps and cluster.vpp == 1,
            summed_ns=tuple(ahead.makespan_ns for ahead, _ in steps),
            updated_ns=tuple(behind.makespan_ns for _, behind in steps),
            tied_ns=self._tied_ns(),
        )

    def played(self, piece: Piece) -> Totals:
        """Return the sums of a pass that is played alone, behind its host where that leads; of a
        pair, its share."""
        if self.leads:
            return self.led(piece).totals
        whole = self._alone(self.pieces.schedule(piece))
        if piece.beside is None:
            return whole
        return _shared(whole, _share_of(piece, [self.played(one) for one in piece.pair]))

    def led(self, piece: Piece) -> Led:
        """Return a pass that is played alone behind its host, and the host's times."""
        if piece not in self._led:
            schedule = self.pieces.schedule(piece)
            whole = repriced(schedule, self.cost).led(self.cost)
            if piece.beside is not None:
                whole = _led_share(whole, piece, [self.led(one) for one in piece.pair])
            self._led[piece] = whole
        return self._led[piece]

    def _pass(self, piece: Piece) -> tuple[int, int, int, int]:
        """Return the times of a pass and of its host, as ``PipelineProgram`` has them."""
        if not self.leads:
            return self.played(piece).makespan_ns, 0, 0, NEVER_NS
        led = self.led(piece)
        return led.totals.makespan_ns, led.late_ns, led.issued_ns, led.held_ns

    def _behind(self) -> Ints:
        """Return the task that each task waits for until the queue has room, −1 for none."""
        numbered = self.pieces.numbered
        if not self.leads:
            return np.full(len(numbered.of_task), -1, np.int64)
        computes = tuple(self.led(piece).computes for piece in numbered.pieces)
        return _behind(self.pieces.wires, numbered, computes, self.cost.launch.queue_depth)

    def step(self, rank: int) -> list[Totals]:
        """Return the sums of a rank's way to the norm over all ranks, and from there on."""
        return [self._alone(schedule) for schedule in self.pieces.step(rank)]

    def _alone(self, schedule: Schedule) -> Totals:
        number = id(schedule)  # which the pieces keep
        if number not in self._played:
            found = repriced(schedule, self.cost).totals(self.cost) if len(schedule) else NOTHING
            self._played[number] = found
        return self._played[number]

    def _message_ns(self, nodes: int, per_node: int) -> int:
        """Return the time of a message between two ranks, which are on one domain or two."""
        if not self.pieces.communicates:
            return 0
        dtype = self.pieces.whole.workload.dtype
        return self.cost.duration_ns(
            Collective("send_recv", self.pieces.message_bytes, nodes, per_node, 0, dtype)
        )

    # Data parallelism ---------------------------------------------------------------------------

    def _lane(self, rank: int, number: int) -> ReplicaTimes:
        """Return what a chunk plays on the data-parallel lane."""
        sizes = self.pieces.bucket_sizes(rank, number)
        key = id(sizes)  # which the pieces keep
        if key not in self._lanes:
            self._lanes[key] = ReplicaTimes(self._gathers_ns(sizes), self._buckets_ns(sizes))
        return self._lanes[key]

    def _buckets_ns(self, sizes: list[Held]) -> tuple[int, ...]:
        whole = self.pieces.whole
        if not (whole.reduces and whole.workload.overlap_grad_reduce):
            return ()
        return tuple(
            self._alone(self.pieces.passes(held)).makespan_ns
            + each_ns(self.cost, whole.dp_reduction, held)
            for held in sizes
        )

    def _gathers_ns(self, sizes: list[Held]) -> tuple[int, ...]:
        whole, work = self.pieces.whole, self.pieces.whole.workload
        if not (whole.reduces and whole.shards_optimizer and work.overlap_param_gather):
            return ()
        return tuple(each_ns(self.cost, whole.dp_gather, held) for held in reversed(sizes))

    def _tied_ns(self) -> int:
        """Return the time of the sum of a tied table's gradient over the ranks of the first and the
        last stage."""
        whole = self.pieces.whole
        if self.pieces.ranks[0][-1].head:  # one rank has both
            return 0
        shared = whole.model.tie_word_embeddings or whole.model.num_nextn_predict_layers > 0
        if not (shared and self.pieces.communicates):
            return 0
        nodes, per_node = whole.cluster.p2p_group(whole.cluster.pp - 1)
        size, work = whole.table_parameters * whole.grad_bytes, whole.workload
        algo = work.implementation.nccl_algo
        return self.cost.duration_ns(
            Collective("all_reduce", size, nodes, per_node, 0, work.grad_dtype, algo)
        )


def each_ns(cost: CostModel, collective: Callable[..., Collective], held: Held) -> int:
    """Return the time of a collective of experts' parameters, and of one of the rest."""
    duration_ns = cost.duration_ns
    experts_ns = duration_ns(collective(held.experts, experts=True)) if held.experts else 0
    return experts_ns + (duration_ns(collective(held.rest)) if held.rest else 0)


def _share_of(piece: Piece, alone: list[Totals]) -> Callable[[int], int]:
    """Return what gives the part of a pair's time that ``piece`` takes of it: as the times of its
    forward and its backward ``alone`` are to each other. Their messages go out one after the
    other."""
    share = alone[0].makespan_ns / (alone[0].makespan_ns + alone[1].makespan_ns)

    def part(total: int) -> int:
        ahead = round(share * total)
        return ahead if piece.part == "forward" else total - ahead

    return part


def _shared(whole: Totals, part: Callable[[int], int]) -> Totals:
    return Totals(
        part(whole.makespan_ns), part(whole.compute_ns), part(whole.comm_ns),
        part(whole.exposed_ns), tuple(map(part, whole.lane_ns)),
    )  # fmt: skip


def _led_share(whole: Led, piece: Piece, alone: list[Led]) -> Led:
    """Return the part of a pair behind its host that ``piece`` takes."""
    part = _share_of(piece, [one.totals for one in alone])
    return Led(
        _shared(whole.totals, part), part(whole.late_ns), part(whole.issued_ns),
        max(one.held_ns for one in alone), alone[piece.part != "forward"].computes,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _behind(wires: Wiring, numbered: NumberedPasses, computes: tuple[int, ...], depth: int) -> Ints:
    """Return for each task the number of its rank's latest one that must be done before the queue
    has room for it, −1 for none. ``computes``: the compute ops of each pass."""
    each = np.array(computes, np.int64)[numbered.of_task]
    ended, first = np.cumsum(each), wires.first
    latest = np.searchsorted(ended, ended - each - depth, side="right") - 1
    return np.where(latest >= np.repeat(first[:-1], np.diff(first)), latest, -1)


def _some(found: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return the entries that are not empty."""
    return {task: times_ns for task, times_ns in found.items() if times_ns}
