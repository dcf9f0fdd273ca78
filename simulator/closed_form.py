"""Closed forms for the time of a plan: a proven lower bound and an estimate, without an engine.

Both add up durations fragment by fragment. The sums depend on few numbers of a plan and are cached,
so that a plan costs microseconds.

The forward and the backward pass of a micro-batch occupy disjoint stretches of time: compute is
FIFO, and a compute op of the same pass reads every tensor-parallel all-reduce. Let W_f be the time
of a stretch's compute of family f and K that of its all-reduces, both run alone. Let φ_f and γ ≥ 1
be the slowdowns of family f and of an all-reduce by each other, and x_f the time in which both are
in flight. Then
    T ≥ Σ (W_f − x_f/φ_f) + Σ x_f + (K − Σ x_f/γ),   x_f ≤ φ_f·H_f,   Σ x_f ≤ γ·K,
where H_f ≤ W_f is the compute that can run beside an all-reduce: all of it with several row slices
or where layers are recomputed, else later column pieces and wgrads; with sequence parallelism also
the column-parallel dgrads, beside which a norm's output is gathered for the wgrad. The minimum
fills x_f in rising order of 1 − 1/φ_f − 1/γ, while that is negative. More lanes in flight only slow
ops down further. Where a slowdown depends on how long an op takes or how large a message is, φ_f or
γ is the least one: beside a slower one less work is done in the same time, so no term of T gets
smaller. In ``intra`` the op behind a block's first gather reads it, so that no compute runs beside
it: these gathers are added whole, and K is the rest.

The estimate takes these sums and adds what each order exposes. It leaves out the all-reduces at the
edges, waits between ranks, and links that two groups share, so it is mostly a little low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from simulator.case import Case
from simulator.contention import SCALE, ComputeFamily, Family
from simulator.cost import CostModel
from simulator.edges import Edges
from simulator.fragments import Fragments
from simulator.issue_order import (
    ALL_SLICES,
    BLOCKS,
    COLUMN_PARALLEL,
    FORWARD_FRAGMENTS,
    ROW_PARALLEL,
    BlockFragments,
    Token,
    backward_fragments,
    slice_tokens,
)
from simulator.ops import Gemm
from simulator.optimizer_step import optimizer_step, zero_grads
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, OpTemplate
from simulator.specs import recomputed_layers
from simulator.templates import Templates

FAMILIES: Final = ("gemm", "attention", "pointwise")
SAFETY: Final = 1e-9
"""Relative margin for rounding: engines round times up to whole nanoseconds."""


class Work(NamedTuple):
    """Times of a part of a layer or of an edge, all row slices, in ns run alone.

    ``family_ns``, ``fragment_ns``: compute by kind of op, and by fragment; ``comm_ns``: its
    collectives; ``gather_ns``: those that a block begins with; ``last_ns``: the last of all;
    ``launch_ns``: the host's cost of issuing all ops.
    """

    family_ns: Counter[str]
    fragment_ns: Counter[str]
    comm_ns: int
    gather_ns: int
    last_ns: int
    launch_ns: int


class Stretch(NamedTuple):
    """One pass of one layer. ``hiding_ns``: compute by family that can hide an all-reduce."""

    blocks: tuple[Work, ...]
    hiding_ns: dict[str, float]
    compute_ns: int
    comm_ns: int


class ClosedForm:
    """Bound and estimate for the plans of one case, all of strategy ``domino``."""

    def __init__(self, case: Case, cost: CostModel | None = None) -> None:
        self.case = case
        self.cost = cost or case.cost
        self._bounds: dict[tuple[object, ...], int] = {}
        self._stretched: dict[tuple[object, ...], Stretch] = {}
        self._layers: dict[tuple[object, ...], Work] = {}
        self._edges: dict[tuple[object, ...], int] = {}
        self._slow: dict[tuple[object, ...], tuple[dict[str, float], float]] = {}

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``.

        It is the same for all orders of the same slices but ``intra``.
        """
        key = (_mode(plan), plan.slices, plan.merge_wgrad, _waits_for_gathers(plan))
        if key not in self._bounds:
            self._bounds[key] = self._bound_ns(plan)
        return self._bounds[key]

    def _bound_ns(self, plan: SlicePlan) -> int:
        slow, micros = self._slowdowns(plan), self.case.workload.grad_accumulation
        waits, device, host = _waits_for_gathers(plan), 0.0, 0
        for layers, stretches in self._kinds(plan):
            device += layers * sum(_least_ns(stretch, *slow, waits=waits) for stretch in stretches)
            host += layers * _launch_ns(stretches)
        device = micros * device + self._edge_ns(plan)
        return int(max(device, micros * host) * (1 - SAFETY))

    def _kinds(self, plan: SlicePlan) -> list[tuple[int, tuple[Stretch, Stretch]]]:
        """Return the number of layers of each kind (recomputed, kept), and their passes."""
        again = recomputed_layers(self.case.model, self.case.workload)
        kept = self.case.model.num_hidden_layers - again
        kinds = [(again, self)] if again else []
        if kept:
            kinds.append((kept, self._keeping if again else self))
        return [(layers, one._stretches(plan)) for layers, one in kinds]

    @cached_property
    def _keeping(self) -> ClosedForm:
        """The same of a stack that recomputes nothing."""
        workload = replace(self.case.workload, recompute="none", recompute_layers=0)
        return ClosedForm(replace(self.case, workload=workload), self.cost)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return an estimate (ns): all-reduces are hidden, except where the order exposes them."""
        slow, micros = self._slowdowns(plan), self.case.workload.grad_accumulation
        passes = behind = 0.0
        for layers, stretches in self._kinds(plan):
            forward, backward = stretches
            forward_ns = _pass_ns(forward, _forward_exposed_ns(plan, forward), *slow)
            backward_ns = _pass_ns(backward, _backward_exposed_ns(plan, backward), *slow)
            passes += layers * max(forward_ns + backward_ns, _launch_ns(stretches))
            behind += layers * backward_ns
        exposed = self._exposed_buckets_ns(plan, behind)
        return micros * passes + self._edge_ns(plan) + exposed

    def _exposed_buckets_ns(self, plan: SlicePlan, backward_ns: float) -> float:
        """Return the data-parallel collectives that a pass does not hide, at least the edges'."""
        shapes, duration_ns = self.case.shapes(plan), self.cost.duration_ns
        if not shapes.reduces:
            return 0.0
        passing = [(shapes.dp_reduction, self.case.workload.overlap_grad_reduce)]
        if shapes.shards_optimizer:
            passing.append((shapes.dp_gather, self.case.workload.overlap_param_gather))
        exposed = 0.0
        for collective, overlaps in passing:
            whole_ns = duration_ns(collective(shapes.rank_parameters))
            last_ns = duration_ns(collective(shapes.edge_parameters))
            exposed += max(whole_ns - backward_ns, last_ns) if overlaps else whole_ns
        return exposed

    def _stretches(self, plan: SlicePlan) -> tuple[Stretch, Stretch]:
        rows, attn, mlp, *dgrads = plan.slices
        recompute = self.case.workload.recompute
        again = (attn, mlp) if recompute == "full" else ()
        return (
            self._stretch(plan, FORWARD_FRAGMENTS, (rows, attn, mlp)),
            self._stretch(plan, backward_fragments(recompute), (rows, *dgrads, *again)),
        )

    def _stretch(
        self, plan: SlicePlan, fragments: BlockFragments, slices: tuple[int, ...]
    ) -> Stretch:
        forward = fragments is FORWARD_FRAGMENTS
        key = (_mode(plan), forward, slices, plan.merge_wgrad)
        if key not in self._stretched:
            blocks = tuple(self._block(plan, block, fragments) for block in BLOCKS)
            self._stretched[key] = _stretch(plan, blocks, slices[1:3])
        return self._stretched[key]

    def _block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Work:
        kind = "col" if fragments is FORWARD_FRAGMENTS else "dgrad"
        counts = [getattr(plan, f"{block}_{kind}_slices")]
        if kind == "dgrad" and self.case.workload.recompute == "full":
            counts.append(getattr(plan, f"{block}_col_slices"))
        key = (_mode(plan), plan.row_slices, plan.merge_wgrad, block, kind, *counts)
        if key not in self._layers:
            self._layers[key] = self._add_up(plan, self._templates(plan, block, fragments))
        return self._layers[key]

    def _templates(
        self, plan: SlicePlan, block: str, fragments: BlockFragments
    ) -> list[tuple[str, OpTemplate]]:
        """Return (fragment, op) of every slice."""
        tokens: dict[Token, None] = {}
        for row in range(plan.row_slices):
            for token in slice_tokens(plan, block, fragments[block], row):
                merged = plan.merge_wgrad and token.fragment.endswith("_wgrad")
                tokens[token._replace(slice=ALL_SLICES) if merged else token] = None
        builder = Fragments(shapes=self.case.shapes(plan))
        return [(token.fragment, op) for token in tokens for op in builder.templates(token)]

    def _add_up(self, plan: SlicePlan, ops: Iterable[tuple[str, OpTemplate]]) -> Work:
        cost = self.cost
        families, fragments = Counter[str](), Counter[str]()
        comm_ns = gather_ns = last_ns = launch_ns = 0
        for fragment, op in ops:
            if cost.launch.mode == "async":
                launch_ns += cost.launch.of(op.signature)
            if op.lane == COMPUTE:
                spent_ns = self._compute_ns(plan, op) + self._inline_ns(op)
                families[op.signature.kind] += spent_ns
                fragments[fragment] += spent_ns
            else:
                last_ns = cost.duration_ns(op.signature)
                comm_ns += last_ns
                gather_ns += last_ns * (fragment in ("norm", "norm_again", "residual_bwd"))
        return Work(families, fragments, comm_ns, gather_ns, last_ns, launch_ns)

    def _inline_ns(self, op: OpTemplate) -> int:
        launch = self.cost.launch
        return launch.of(op.signature) if launch.mode == "inline" else 0

    def _compute_ns(self, plan: SlicePlan, op: OpTemplate) -> int:
        """Return the duration; for a wgrad that may overwrite or add, the shorter of the two.

        The order decides which slice comes first and overwrites. With equal slices all choices
        cost the same, so slice 0 is taken.
        """
        signature, cost = op.signature, self.cost
        adds = self.case.workload.implementation.gradient_accumulation_fusion
        if not (isinstance(signature, Gemm) and signature.layout == "wgrad" and adds):
            return cost.duration_ns(signature)
        adding_ns = cost.duration_ns(signature._replace(accumulate=True))
        uneven = self.case.workload.micro_batch_size % plan.row_slices
        if op.slice > 0 and not uneven:
            return adding_ns
        return min(adding_ns, cost.duration_ns(signature._replace(accumulate=False)))

    def _edge_ns(self, plan: SlicePlan) -> int:
        """Return an iteration's compute outside the layers; later micro-batches add to the
        gradients that the first one clears."""
        key = (_mode(plan), plan.row_slices)
        if key not in self._edges:
            shapes = self.case.shapes(plan)
            cleared = self.case.workload.implementation.zero_grads
            first, later = (
                Templates(shapes=shapes, accumulate_first=adds) for adds in (cleared, True)
            )
            stepped = 1 if shapes.reduces else shapes.rank_parameters
            more = self.case.workload.grad_accumulation - 1
            self._edges[key] = (
                self._sum_ns(plan, [*zero_grads(first), *optimizer_step(first, stepped, ())])
                + self._sum_ns(plan, _micro_edges(Edges(templates=first)))
                + more * self._sum_ns(plan, _micro_edges(Edges(templates=later)))
            )
        return self._edges[key]

    def _sum_ns(self, plan: SlicePlan, ops: Iterable[OpTemplate]) -> int:
        return self._add_up(plan, (("", op) for op in ops)).fragment_ns[""]

    def _slowdowns(self, plan: SlicePlan) -> tuple[dict[str, float], float]:
        """Return the least slowdowns of compute families and an all-reduce beside each other.

        Where sizes matter, they are the least over all sizes that the plan's layers send; where
        durations matter, they are those of long ops.
        """
        rows, *cuts = plan.slices
        key = (_mode(plan), rows, frozenset(cuts))
        if key not in self._slow:
            pairs = [
                {f: self.cost.contention.slowdowns((ComputeFamily(f), family)) for f in FAMILIES}
                for family in self._collective_families(plan, set(cuts))
            ]
            compute = {f: min(pair[f][0] for pair in pairs) / SCALE for f in FAMILIES}
            least = min(slow for pair in pairs for _, slow in pair.values()) / SCALE
            self._slow[key] = compute, least
        return self._slow[key]

    def _collective_families(self, plan: SlicePlan, cuts: set[int]) -> set[Family]:
        """Return the contention families of the all-reduces of a plan's layers."""
        shapes = self.case.shapes(plan)
        whole = {1} if shapes.shards_tokens else set[int]()
        rows = range(plan.row_slices)
        sizes = {shapes.hidden_bytes(row) // cut for row in rows for cut in cuts | whole}
        return {self.cost.family(shapes.tp_all_reduce(size)) for size in sizes}


def _launch_ns(stretches: Iterable[Stretch]) -> int:
    """Return the host's cost of a layer."""
    return sum(work.launch_ns for stretch in stretches for work in stretch.blocks)


def _mode(plan: SlicePlan) -> tuple[object, ...]:
    """Return what decides a plan's collectives, besides its slices."""
    return plan.strategy, plan.comm_ctas, plan.sequence_parallel


def _micro_edges(edges: Edges) -> list[OpTemplate]:
    return [*edges.embedding(), *edges.head(), *edges.embedding_grad()]


def _stretch(plan: SlicePlan, blocks: tuple[Work, ...], pieces: tuple[int, ...]) -> Stretch:
    families = blocks[0].family_ns + blocks[1].family_ns
    hiding: dict[str, float] = dict(families)
    recomputes = "norm_again" in blocks[0].fragment_ns  # which needs nothing of backward
    if plan.row_slices == 1 and not recomputes:
        gemm_ns = 0.0
        for block, work, count in zip(BLOCKS, blocks, pieces, strict=True):
            spent, first, last = work.fragment_ns, COLUMN_PARALLEL[block], ROW_PARALLEL[block]
            gemm_ns += spent[f"{last}_wgrad"] + spent[f"{first}_wgrad"]
            dgrad = f"{first}_dgrad" in spent
            cut = spent[f"{first}_dgrad"] if dgrad else spent[last]
            beside = count if dgrad and plan.sequence_parallel else count - 1
            gemm_ns += cut * beside / count
        hiding = {"gemm": gemm_ns}
    return Stretch(blocks, hiding, families.total(), sum(work.comm_ns for work in blocks))


def _waits_for_gathers(plan: SlicePlan) -> bool:
    """Return whether a block's first op waits for its gather, and nothing is issued between."""
    unsliced = plan.strategy != "domino" or (plan.row_slices == 1 and plan.order != "greedy")
    return plan.sequence_parallel and (unsliced or plan.order == "intra")


def _least_ns(
    stretch: Stretch, slow: dict[str, float], slow_comm: float, *, waits: bool = False
) -> float:
    """Return the minimum of the module's docstring; ``waits``: for the gathers, alone."""
    total = float(stretch.compute_ns + stretch.comm_ns)
    gathers_ns = sum(work.gather_ns for work in stretch.blocks) if waits else 0
    room = slow_comm * (stretch.comm_ns - gathers_ns)
    for family in sorted(stretch.hiding_ns, key=slow.__getitem__):
        gain = 1 / slow[family] + 1 / slow_comm - 1
        beside = min(room, slow[family] * stretch.hiding_ns[family])
        total -= max(0.0, gain) * beside
        room -= beside
    return total


def _pass_ns(
    stretch: Stretch, exposed_ns: float, slow: dict[str, float], slow_comm: float
) -> float:
    """Return ``_usual_ns`` and what the order exposes, at most what compute would hide."""
    usual_ns = _usual_ns(stretch, slow, slow_comm)
    return max(usual_ns, min(usual_ns + exposed_ns, stretch.compute_ns + stretch.comm_ns))


def _usual_ns(stretch: Stretch, slow: dict[str, float], slow_comm: float) -> float:
    """Return the time of ``_least_ns`` if an all-reduce runs beside all families equally."""
    hiding = sum(stretch.hiding_ns.values())
    slowed = sum(slow[family] * spent for family, spent in stretch.hiding_ns.items())
    if not hiding:
        return float(stretch.compute_ns + stretch.comm_ns)
    beside = min(slow_comm * stretch.comm_ns, slowed)
    gain = 1 / slow_comm - 1 + hiding / slowed
    return stretch.compute_ns + stretch.comm_ns - gain * beside


def _forward_exposed_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the exposed time of last all-reduces: the MLP's in ``intra``, both in ``paper``."""
    if plan.row_slices == 1 or plan.order not in ("intra", "paper"):
        return 0.0
    attn, mlp = stretch.blocks
    other = 1 - 1 / plan.row_slices
    exposed = max(0.0, mlp.last_ns - other * mlp.fragment_ns["residual"])
    exposed += _exposed_gathers_ns(plan, stretch)
    if plan.order == "paper":
        hidden = other * (attn.fragment_ns["residual"] + mlp.fragment_ns["norm"])
        exposed += max(0.0, attn.last_ns - hidden)
    return exposed


def _exposed_gathers_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the gathers that a block begins with: every slice's in ``intra``, the first one's in
    ``paper``, where the others' are hidden behind it."""
    gathers = sum(work.gather_ns for work in stretch.blocks)
    return gathers / (plan.row_slices if plan.order == "paper" else 1)


def _backward_exposed_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """Return the same for backward, where the last slice's wgrads help to hide its all-reduce."""
    if plan.order not in ("intra", "paper"):
        return 0.0
    waiting = list(zip(BLOCKS, stretch.blocks, strict=True))
    if plan.order == "intra":
        del waiting[1:]
    if plan.row_slices == 1:
        return 0.0
    other, exposed = 1 - 1 / plan.row_slices, _exposed_gathers_ns(plan, stretch)
    for block, work in waiting:
        behind = work.fragment_ns[f"{COLUMN_PARALLEL[block]}_wgrad"]
        behind += work.fragment_ns[f"{ROW_PARALLEL[block]}_wgrad"] * (plan.wgrad == "deferred")
        share = 1.0 if plan.merge_wgrad else 1 / plan.row_slices
        exposed += max(0.0, work.last_ns - share * behind - other * work.fragment_ns["norm_bwd"])
    return exposed
