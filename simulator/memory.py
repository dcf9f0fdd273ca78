"""Peak memory: of a rank by category, of each rank of a pipeline, and of a plan's fullest one.

A value lives from the op that writes it to the last op that reads it, in issue order. A value
written in place takes no extra memory. Weights, main gradients and optimizer state always exist.
The values of the last micro-batch are counted, and those of the optimizer's step after it:
``kernels.lives`` goes through all their ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.build import built_once
from simulator.case import Case, Chunk, joined
from simulator.edges import Edges
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.kernels import lives
from simulator.kernels.load import call
from simulator.op_table import Listing, listing_of
from simulator.optimizer import state_bytes
from simulator.overlap import EP_OVERLAP, buffers_of
from simulator.overlapped import SHARE_OF_LAYER
from simulator.pipeline.build import PASSES, Piece, Pieces, pieces_of
from simulator.plan import (
    MAX_ROW_SLICES,
    MEGATRON,
    SEQUENCE_ROW_SLICES,
    SlicePlan,
    row_problem,
    searched_slicings,
)
from simulator.quantized import one_copy, operand_bytes
from simulator.schedule import Repeat, Schedule, Segment
from simulator.shapes import Shapes
from simulator.templates import Templates
from simulator.values import Ref

if TYPE_CHECKING:
    from numpy.typing import NDArray


WORKSPACE_BYTES: Final = 32 << 20
"""cuBLAS's workspace on Hopper and later, as PyTorch sets it (ATen/cuda/CublasHandlePool.cpp)."""
GATHERED_LAYERS: Final = 2
"""Layers whose parameters FSDP holds whole: one in use, one ahead. So are those of the edges."""


class Memory(NamedTuple):
    """Bytes of one rank at its peak. ``optimizer``: main parameters and Adam's moments;
    ``activations``: all values of the schedule but logits; ``buffers``: workspaces of the library
    and of the plan's strategy; ``experts``: parameters, gradients and optimizer state of routed
    experts, which the first three leave out.
    These are allocated bytes: what is reserved beside them is in ``simulator/usable.py``."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int = 0
    logits: int = 0
    buffers: int = 0
    experts: int = 0


class Live(NamedTuple):
    """Bytes of live values, and those of them that are logits."""

    whole: int
    logits: int


def held_parameters(case: Case, shapes: Shapes) -> Memory:
    """Return the memory of a rank with these shapes that no schedule changes."""
    element = case.workload.dtype_bytes
    parameters = gradients = shapes.held.whole
    state = state_bytes(case.workload)
    if shapes.shards_parameters:
        gathered = shapes.edge_parameters + GATHERED_LAYERS * shapes.layer_parameters
        parameters = min(parameters, gathered)
        gradients = shapes.optimizer_parameters + shapes.layer_parameters
    routed, updated = shapes.held.experts, shapes.optimizer_experts
    copies = _copies_bytes(shapes, shapes.quantized_experts)
    return Memory(
        parameters=(parameters - routed) * element + _quantized_bytes(shapes) - copies,
        gradients=(gradients - routed) * shapes.grad_bytes,
        optimizer=(shapes.optimizer_parameters - updated) * state,
        buffers=_buffer_bytes(case, shapes),
        experts=routed * (element + shapes.grad_bytes) + updated * state + copies,
    )


def _quantized_bytes(shapes: Shapes) -> int:
    """Return the bytes of the weights' copies for fprop and dgrad, of gathered layers where
    parameters are sharded, less those of the parameters in BF16 where they are not kept."""
    count = shapes.quantized_parameters
    if shapes.shards_parameters:
        count = min(count, GATHERED_LAYERS * shapes.linear_parameters)
    return _copies_bytes(shapes, count)


def _copies_bytes(shapes: Shapes, count: int) -> int:
    """Return the bytes that copies of ``count`` quantized weights add."""
    copies = 1 if one_copy(shapes) else 2
    kept = count * shapes.element if shapes.workload.fp8_param_gather else 0
    return copies * operand_bytes(shapes, count) - kept


def _buffer_bytes(case: Case, shapes: Shapes) -> int:
    """Return the bytes of cuBLAS's workspace, of an empty gradient of each shape in a layer, and of
    the buffers through which the plan's strategy communicates."""
    workspace = WORKSPACE_BYTES if case.profile.machine.backend == "nccl" else 0
    kept = case.workload.implementation.dummy_wgrads * max(
        one.dummy_parameters for _, one in shapes.kinds
    )
    return workspace + kept * shapes.element + _strategy_bytes(case, shapes)


def _strategy_bytes(case: Case, shapes: Shapes) -> int:
    plan, cluster = shapes.plan, case.cluster
    own = buffers_of(plan.strategy, plan.tp_comm_overlap)
    tokens = case.workload.tokens // cluster.cp
    each = tokens * case.model.hidden_size * case.workload.dtype_bytes
    return own.whole * each + own.shares * each // cluster.tp


def unpiped_memory(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Memory:
    """Return the memory at its peak of a rank with all layers. Where two micro-batches run beside
    each other, one has layers that the other has freed."""
    pairs = plan.strategy == EP_OVERLAP
    alone = replace(plan, strategy="megatron") if pairs else plan
    schedule = _schedule(case, alone, order or order_of(case, alone))
    *passes, step = live_peaks(schedule)
    live = max(passes)
    if pairs:
        more = SHARE_OF_LAYER * kept_bytes(schedule) // case.model.stacked_layers
        live = live._replace(whole=live.whole + more)
    live = max(live, step)
    return held_parameters(case, case.shapes(plan))._replace(
        activations=live.whole - live.logits, logits=live.logits
    )


def kept_bytes(schedule: Schedule) -> int:
    """Return what a micro-batch's pass forward leaves for backward."""
    return _phases(schedule)[0].held.whole


def head_bytes(case: Case) -> Iterator[int]:
    """Yield a lower bound (bytes) on the peak of all plans with the same row slices, most first.

    Every plan issues all of forward before the loss's sums and all of backward after them. So
    during the sums it holds all logits and the values that backward will read, the same bytes for
    every cut and order. The sums run over all slices, so their peak depends on the row slices
    alone, and it bounds every plan's peak. So do the bytes held when the first slice's gradient of
    the head's input is made, since no gradient of a layer is made earlier.
    """
    batch = case.workload.micro_batch_size
    rows = range(min(MAX_ROW_SLICES, batch), 0, -1)
    along, *across = searched_slicings(batch)
    cuts = [*product(rows, (along,)), *product(SEQUENCE_ROW_SLICES, across)]
    for (count, (dim, balance)), mode in product(cuts, case.modes):
        plan = SlicePlan(
            row_slices=count, order="intra", wgrad="eager", sequence_parallel=mode, slice_dim=dim,
            slice_balance=balance,
        )  # fmt: skip
        if row_problem(plan, case.workload, case.cluster):
            continue
        turn = live_peaks(_schedule(case, plan, order_of(case, plan)))[lives.TURN]
        held = max(turn.whole, _turned_bytes(case, plan, turn))
        yield sum(held_parameters(case, case.shapes(plan))) + held


def _turned_bytes(case: Case, plan: SlicePlan, turn: Live) -> int:
    """Return the fewest bytes that are live with the first gradient of the head's input. Gradients
    of other slices' logits may be made before it, and free the values that only they read."""
    rows = range(plan.row_slices)
    sizes = {
        ref: size
        for op in Edges(templates=Templates(shapes=case.shapes(plan))).whole(plan.rows_back[0])
        for ref, size in zip(op.writes, op.sizes, strict=True)
    }

    def size(value: Ref) -> int:
        return sizes.get(value, 0)

    def turned(row: int) -> int:
        """Return the bytes that the gradient of a slice's logits and the gather after it add."""
        freed = sum(size(Ref(name, row)) for name in ("loss.max", "loss.sum", "fp32.logits"))
        norm = Ref("head.norm", row)
        gathered = size(norm.form("ag_bwd"))
        return gathered - (size(norm) if gathered else 0) - freed

    others = sum(min(0, turned(row)) for row in rows)
    return turn.whole + min(
        others - min(0, turned(row)) + turned(row)
        + size(Ref("head.norm", row).grad) + size(Ref("head.norm", row).grad.form("rs"))
        for row in rows
    )  # fmt: skip


def _schedule(case: Case, plan: SlicePlan, order: LayerOrder) -> Schedule:
    return built_once(
        case.model, case.workload, case.cluster, plan, order,
        fp8_any_layout=case.profile.machine.fp8_any_layout,
    )  # fmt: skip


def live_peaks(schedule: Schedule) -> tuple[Live, ...]:
    """Return one micro-batch's peaks of live values: before, in and after the loss's sums, from the
    first recomputed layer on, and in the optimizer's step."""
    found = schedule.programs.get(Live)
    if found is None:
        peaks = tuple(one.peak for one in _phases(schedule))
        found = schedule.programs[Live] = peaks
    made: tuple[Live, ...] = found
    return made


class Phase(NamedTuple):
    """Live values of a part of a micro-batch: at its peak, and at its end."""

    peak: Live
    held: Live


def lifetimes(listing: Listing, phases: NDArray[np.int64], count: int) -> list[Phase]:
    """Return the live values of each of ``count`` phases, those of the last part's segments."""
    ops, refs, storages = listing.with_refs(lives.R_STORAGE)
    begin, end, _ = listing.parts[-1]
    lowest, layers = listing.layers(len(listing.parts) - 1, ops, refs)
    segments = listing.segments[begin:end]
    played = (segments[:, lives.G_OPS_END] - segments[:, lives.G_OPS]) @ segments[:, lives.G_COUNT]
    found = np.zeros((count, lives.PHASE_COLUMNS), np.int64)
    call(
        "live_bytes", ops, refs, segments, listing.listed, phases, lowest,
        np.empty((layers, storages), np.int64), np.zeros((played, 2), np.int64), found,
    )  # fmt: skip
    return [Phase(Live(*row[:2]), Live(*row[2:])) for row in found.tolist()]


def _phases(schedule: Schedule) -> list[Phase]:
    """Return the phases of the last micro-batch, with which the iteration ends."""
    listing = listing_of(schedule)
    first, last, _ = listing.parts[-1]
    segments = listing.segments[first:last]
    phases = np.empty(len(segments), np.int64)
    call("phases_of", listing.ops, segments, listing.listed, phases)
    return lifetimes(listing, phases, lives.PHASES)


# Peak memory of each rank of a pipeline -----------------------------------------------------------
# What its chunks hold for the micro-batches in flight, or what the optimizer's step copies after
# them.

KINDS: Final = {part: kind for kind, part in PASSES.items()}
Phases = dict[str, Phase]
"""Live values of a chunk's passes: of ``F`` and ``B``, and of ``I`` and ``W``
where these are apart."""


def piped_memory(case: Case, pieces: Pieces) -> tuple[Memory, ...]:
    """Return each rank's memory at its peak. In its step it holds nothing of a pass any more."""
    every = {chunk for rank in pieces.ranks for chunk in rank}
    phases = {chunk: held_phases(pieces, chunk) for chunk in every}
    numbered = pieces.numbered
    changes = [_change(phases[one.chunk], KINDS[one.part]) for one in numbered.pieces]
    rows = np.array([(*one.at_peak, *one.at_end) for one in changes], np.int64)
    ranks = [joined(rank) for rank in pieces.ranks]
    alike = {chunk: number for number, chunk in enumerate(ranks)}
    steps = {chunk: _step_peak(pieces, number) for chunk, number in alike.items()}
    peaks = np.array([steps[chunk] for chunk in ranks], np.int64)
    call("rank_peaks", pieces.wires.first, numbered.of_task, rows, peaks)
    static = {
        chunk: held_parameters(case, pieces.step_shapes(number)) for chunk, number in alike.items()
    }
    return tuple(
        static[chunk]._replace(activations=whole - logits, logits=logits)
        for chunk, (whole, logits) in zip(ranks, peaks.tolist(), strict=True)
    )


class _Change(NamedTuple):
    """By what a pass changes the bytes that its rank holds: at its peak, and after it."""

    at_peak: Live
    at_end: Live


def _change(phases: Phases, kind: str) -> _Change:
    """Return the change of a pass, which takes over what the pass before it left."""
    before = {"F": "", "B": "F", "I": "F", "W": "I"}[kind]
    own = phases[before].held if before else Live(0, 0)
    taken = Live(-own.whole, -own.logits)
    return _Change(_sum(taken, phases[kind].peak), _sum(taken, phases[kind].held))


def _sum(one: Live, other: Live) -> Live:
    return Live(one.whole + other.whole, one.logits + other.logits)


def held_phases(pieces: Pieces, chunk: Chunk) -> Phases:
    """Return what a chunk holds during and after each pass; a received message lives as long as the
    values that it carries."""
    return {
        kind: phase
        for kinds in pieces.ways
        for kind, phase in _held_in(pieces, chunk, kinds).items()
    }


def _held_in(pieces: Pieces, chunk: Chunk, kinds: str) -> Phases:
    """Return the same of passes that follow one another."""
    schedules = [pieces.schedule(Piece(chunk, PASSES[kind], False)) for kind in kinds]
    known, key = schedules[0].programs, (Phase, *map(id, schedules[1:]))
    if key not in known:
        passes = [one.parts[0].segments for one in schedules]
        known[key] = _lived(schedules[0], passes), schedules[1:]  # which stay, with their ids
    phases = dict(zip(kinds, known[key][0], strict=True))
    received = pieces.whole.residual_bytes(-1)
    if not chunk.embedding:
        phases["F"] = _more(phases["F"], received, received)
        phases[kinds[1]] = _more(phases[kinds[1]], received, 0)
    if not chunk.head:
        phases[kinds[1]] = _more(phases[kinds[1]], received, 0)
    return phases


def _lived(first: Schedule, passes: Sequence[Sequence[Segment]]) -> list[Phase]:
    """Return what lives during and after each of ``passes`` that follow one another; ``first`` has
    the segments of the first."""
    whole = replace(first, parts=(Repeat(segments=tuple(chain(*passes))),))
    phased = np.repeat(np.arange(len(passes)), list(map(len, passes)))
    return lifetimes(listing_of(whole), phased, len(passes))


def _step_peak(pieces: Pieces, rank: int) -> Live:
    """Return the most live values of a rank's step."""
    ahead, behind = pieces.step(rank)
    found = ahead.programs.get(Live)
    if found is None:
        whole = *ahead.parts[0].segments, *behind.parts[0].segments
        found = ahead.programs[Live] = _lived(ahead, [whole])[0].peak
    peak: Live = found
    return peak


def _more(phase: Phase, at_peak: int, at_end: int) -> Phase:
    return Phase(_sum(phase.peak, Live(at_peak, 0)), _sum(phase.held, Live(at_end, 0)))


def stage_memory(
    case: Case, plan: SlicePlan, order: LayerOrder | None = None
) -> tuple[Memory, ...]:
    """Return each stage's memory at its peak; one stage without a pipeline."""
    if case.cluster.pp == 1:
        return (unpiped_memory(case, plan, order),)
    return piped_memory(case, pieces_of(case, plan, order))


def peak_memory(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Memory:
    """Return the memory at its peak of the fullest stage."""
    return max(stage_memory(case, plan, order), key=sum)


def peak_bytes(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return the sum of ``peak_memory``."""
    return sum(peak_memory(case, plan, order))


def least_peak_bytes(case: Case) -> int:
    """Return a lower bound (bytes) on the peak of every searched plan; most plans of real models
    need little more. With a pipeline it is the static memory of the fullest stage."""
    return min(_least_bytes(case))


def may_fit(case: Case) -> bool:
    """Return whether ``least_peak_bytes`` may be recommended; the first bound usually decides."""
    return any(held <= case.memory.sure_bytes for held in _least_bytes(case))


def static_memory(case: Case, plan: SlicePlan) -> Memory:
    """Return the static memory of the fullest stage: parameters, main gradients, optimizer state
    and workspaces."""
    whole = case.shapes(plan)
    if case.cluster.pp == 1:
        return held_parameters(case, whole)
    ranks = dict.fromkeys(map(joined, case.chunks))
    stages = (held_parameters(case, chunk.of(whole)) for chunk in ranks)
    return max(stages, key=sum)


def _least_bytes(case: Case) -> Iterator[int]:
    if case.cluster.pp == 1:
        return head_bytes(case)
    usual = replace(MEGATRON, sequence_parallel=case.modes[0])
    return iter([sum(static_memory(case, usual))])
