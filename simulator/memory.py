"""Peak memory of a rank by category, from the lifetimes of the schedule's values.

A value lives from the op that writes it to the last op that reads it, in issue order. A value
written in place takes no extra memory. Weights, main gradients and optimizer state always exist.
Each layer of a kind (kept, or recomputed in backward) adds the same to the peak of every phase, so
short stacks determine the peak of a deep one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from simulator.build import build_schedule
from simulator.case import Case
from simulator.edges import Edges
from simulator.issue_order import LayerOrder, without_recomputation
from simulator.ordering import order_of
from simulator.overlap import buffers_of
from simulator.plan import MAX_ROW_SLICES, SlicePlan, row_problem
from simulator.recomputation import RECOMPUTED_SUFFIX
from simulator.schedule import OpTemplate, Schedule, Segment
from simulator.shapes import Shapes
from simulator.sharding import recomputed_layers
from simulator.slicing import SEQUENCE_ROW_SLICES, searched_slicings
from simulator.specs import ClusterSpec, ModelSpec, Recompute, Workload
from simulator.templates import Templates

Specs = tuple[ModelSpec, Workload, ClusterSpec]

SHORT: Final = 4
"""Layers of each kind in the shorter stack; others have one more. Orders span three at most."""
TURN: Final = 1
"""Index of the loss's sums among the phases: forward, these, backward, backward that recomputes."""
IN_PLACE: Final = (".ar", ".rope", ".qk_norm", ".own")
"""Ends of the names of values that are in their predecessor's memory, or it in theirs."""
WORKSPACE_BYTES: Final = 32 << 20
"""cuBLAS's workspace on Hopper and later, as PyTorch sets it (ATen/cuda/CublasHandlePool.cpp)."""
GATHERED_LAYERS: Final = 2
"""Layers whose parameters FSDP holds whole: one in use, one ahead. So are those of the edges."""
MOMENT_BYTES: Final = 8
"""Bytes per parameter of Adam's two moments, in fp32."""
MAIN_BYTES: Final = 4
"""Bytes of an fp32 main parameter; it exists beside a parameter of fewer bytes."""


class Memory(NamedTuple):
    """Bytes of one rank at its peak. ``optimizer``: main parameters and Adam's moments;
    ``activations``: all values of the schedule but logits; ``buffers``: workspaces of the library
    and of the plan's strategy.
    These are allocated bytes: what is reserved beside them is in ``simulator/usable.py``."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int = 0
    logits: int = 0
    buffers: int = 0


class Live(NamedTuple):
    """Bytes of live values, and those of them that are logits."""

    whole: int
    logits: int


def held_parameters(case: Case, shapes: Shapes) -> Memory:
    """Return the memory of a rank with these shapes that no schedule changes."""
    element = case.workload.dtype_bytes
    parameters = gradients = shapes.rank_parameters
    main = MAIN_BYTES if element < MAIN_BYTES else 0
    if shapes.shards_parameters:
        gathered = shapes.edge_parameters + GATHERED_LAYERS * shapes.layer_parameters
        parameters = min(parameters, gathered)
        gradients = shapes.optimizer_parameters + shapes.layer_parameters
    return Memory(
        parameters=parameters * element,
        gradients=gradients * shapes.grad_bytes,
        optimizer=shapes.optimizer_parameters * (main + MOMENT_BYTES),
        buffers=_buffer_bytes(case, shapes),
    )


def _buffer_bytes(case: Case, shapes: Shapes) -> int:
    """Return the bytes of cuBLAS's workspace, of an empty gradient of each shape in a layer, and of
    the buffers through which the plan's strategy communicates."""
    workspace = WORKSPACE_BYTES if case.profile.machine.backend == "nccl" else 0
    kept = case.workload.implementation.dummy_wgrads * shapes.linear_parameters
    return workspace + kept * shapes.element + _strategy_bytes(case, shapes)


def _strategy_bytes(case: Case, shapes: Shapes) -> int:
    plan, cluster = shapes.plan, case.cluster
    own = buffers_of(plan.strategy, plan.tp_comm_overlap)
    tokens = case.workload.tokens // cluster.cp
    each = tokens * case.model.hidden_size * case.workload.dtype_bytes
    return own.whole * each + own.shares * each // cluster.tp


def unpiped_memory(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Memory:
    """Return the memory at its peak of a rank with all layers."""
    live = max(_peaks(_specs(case), plan, order or order_of(case, plan)))
    return held_parameters(case, case.shapes(plan))._replace(
        activations=live.whole - live.logits, logits=live.logits
    )


def head_bytes(case: Case) -> Iterator[int]:
    """Yield, for each number of row slices, most first, bytes that no such plan's peak is below.

    Every plan issues all of forward before the loss's sums and all of backward behind them. So
    there it holds all logits and what backward will read, which is the same bytes for every cut and
    order. The sums run over all slices, so their peak depends on the row slices alone, and no
    plan's peak is below it. Nor is it below what it holds when the first slice's gradient of the
    head's input is made, since no gradient of a layer is made before.
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
        turn = _peaks(_specs(case), plan, order_of(case, plan))[TURN]
        held = max(turn.whole, _turned_bytes(case, plan, turn))
        yield sum(held_parameters(case, case.shapes(plan))) + held


def _turned_bytes(case: Case, plan: SlicePlan, turn: Live) -> int:
    """Return the least that is held with the first gradient of the head's input: gradients of other
    slices' logits may be made before it, which free what only they read."""
    made, rows = Templates(shapes=case.shapes(plan)), range(plan.row_slices)
    Edges(templates=made).whole()

    def size(name: str) -> int:
        return made.value_bytes.get(name, 0)

    def turned(row: int) -> int:
        """Return what the gradient of a slice's logits and the gather behind it add."""
        s = f"s{row}"
        freed = sum(size(f"{s}.{name}") for name in ("loss.max", "loss.sum", "fp32.logits"))
        gathered = size(f"{s}.head.norm.ag_bwd")
        return gathered - (size(f"{s}.head.norm") if gathered else 0) - freed

    others = sum(min(0, turned(row)) for row in rows)
    return turn.whole + min(
        others - min(0, turned(row)) + turned(row)
        + size(f"d.s{row}.head.norm") + size(f"d.s{row}.head.norm.rs")
        for row in rows
    )  # fmt: skip


def _specs(case: Case) -> Specs:
    return case.model, case.workload, case.cluster


@lru_cache(maxsize=64)
def _peaks(specs: Specs, plan: SlicePlan, order: LayerOrder) -> tuple[Live, ...]:
    """Return the peaks of live values of the whole stack, one for each phase. How fast the machine
    is does not matter, so what-ifs ask for the same ones again."""
    model, workload, _ = specs
    again = recomputed_layers(model, workload)
    counts = (model.num_hidden_layers - again, again)
    short = tuple(min(count, SHORT) for count in counts)
    base = _phases(specs, plan, order, *short)
    peaks = base
    for kind, count in enumerate(counts):
        more = count - short[kind]
        if more:
            longer = list(short)
            longer[kind] += 1
            grown = _phases(specs, plan, order, *longer)
            peaks = [
                Live(*(p + more * (b - a) for p, a, b in zip(peak, before, after, strict=True)))
                for peak, before, after in zip(peaks, base, grown, strict=True)
            ]
    return tuple(peaks)


def _phases(specs: Specs, plan: SlicePlan, order: LayerOrder, kept: int, again: int) -> list[Live]:
    """Return the peaks of live values in the forward pass, the loss's sums, and backward of
    ``kept`` layers and of ``again`` recomputed ones."""
    model, workload, cluster = specs
    recompute: Recompute = workload.recompute if again else "none"
    once = replace(
        workload, grad_accumulation=1, recompute=recompute,
        recompute_layers=again if kept else 0,
    )  # fmt: skip
    schedule = build_schedule(
        replace(model, num_hidden_layers=kept + again),
        once,
        cluster,
        plan,
        order if again or workload.recompute == "none" else _keeping(order),
    )
    return live_peaks(schedule)


def _keeping(order: LayerOrder) -> LayerOrder:
    return replace(order, backward=without_recomputation(order.backward))


def live_peaks(schedule: Schedule) -> list[Live]:
    """Return one micro-batch's peaks of live values: before, in and behind the loss's sums, and
    from the first recomputed layer on."""
    phases = _with_phases(schedule.parts[0].segments)
    return [phase.peak for phase in lifetimes(phases, 4, schedule.value_bytes)]


class Phase(NamedTuple):
    """Live values of a part of a micro-batch: at its peak, and at its end."""

    peak: Live
    held: Live


def lifetimes(
    segments: list[tuple[int, Segment]], phases: int, sizes: Mapping[str, int]
) -> list[Phase]:
    """Return the live values of each phase of (phase, segment), in issue order."""
    placed = [
        (phase, template, layer)
        for phase, segment in segments
        for template, layer in _expand(segment)
    ]
    last_read: dict[tuple[int, str], int] = {}
    for index, (_, template, layer) in enumerate(placed):
        for ref in (*template.reads, *template.writes):
            last_read[layer + ref.layer, _storage(ref.name)] = index
    freed: dict[int, list[tuple[int, int]]] = {}
    live = logits = 0
    peaks, held = [Live(0, 0)] * phases, [Live(0, 0)] * phases
    for index, (phase, template, layer) in enumerate(placed):
        for ref in template.writes:
            size = sizes[ref.name]
            if size:
                of_logits = size if ref.name.endswith((".logits", ".uncapped")) else 0
                live, logits = live + size, logits + of_logits
                last = last_read[layer + ref.layer, _storage(ref.name)]
                freed.setdefault(last, []).append((size, of_logits))
        peaks[phase] = max(peaks[phase], Live(live, logits))
        for size, of_logits in freed.pop(index, ()):
            live, logits = live - size, logits - of_logits
        held[phase] = Live(live, logits)
    return [Phase(*both) for both in zip(peaks, held, strict=True)]


@lru_cache(maxsize=1 << 16)
def _storage(name: str) -> str:
    """Return the value whose memory ``name`` uses: in-place results end as IN_PLACE says.

    Gradients of logits overwrite them.
    """
    if name.startswith("d.") and name.endswith((".logits", ".uncapped")):
        name = f"{name[2:].rpartition('.')[0]}.logits"
    while name.endswith(IN_PLACE):
        name = name.rpartition(".")[0]
    return name


def _with_phases(segments: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
    phase, phased = 0, []
    for segment in segments:
        if segment.templates[0].role == "loss.sum":
            phase = TURN
        elif any(RECOMPUTED_SUFFIX in template.role for template in segment.templates):
            phase = 3
        elif phase == TURN:
            phase = 2
        phased.append((phase, segment))
    return phased


def _expand(segment: Segment) -> list[tuple[OpTemplate, int]]:
    return [
        (template, segment.layer(repetition, template.offset))
        for repetition in range(segment.count)
        for template in segment.templates
    ]
