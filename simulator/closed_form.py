"""Closed forms for the time of a plan: a proven lower bound and an estimate, no engine involved.

Both add up durations fragment by fragment; sums depend on few numbers of a plan and are cached, so
that a plan costs microseconds.

Forward and backward of a micro-batch occupy disjoint stretches of time: compute is FIFO and every
tensor-parallel all-reduce of a walk is read by a compute op of the same walk. Let W_f be a
stretch's compute of family f and K its all-reduces, run alone; φ_f and γ ≥ 1 how much compute of
family f and an all-reduce slow each other down; x_f the time in which both are in flight. Then
    T ≥ Σ (W_f − x_f/φ_f) + Σ x_f + (K − Σ x_f/γ),   x_f ≤ φ_f·H_f,   Σ x_f ≤ γ·K,
where H_f ≤ W_f is what may run beside an all-reduce at all: everything where other row slices
exist, else later column pieces and weight gradients. The minimum fills x_f in rising order of
1 − 1/φ_f − 1/γ, as far as that is negative. More lanes in flight only slow things further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from simulator.case import Case
from simulator.contention import SCALE
from simulator.edges import Edges
from simulator.fragments import Fragments
from simulator.issue_order import (
    ALL_SLICES,
    BACKWARD_FRAGMENTS,
    BLOCKS,
    FORWARD_FRAGMENTS,
    Token,
    run,
)
from simulator.ops import Gemm
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, OpTemplate

FAMILIES: Final = ("gemm", "attention", "pointwise")
SAFETY: Final = 1e-9
"""Relative room for rounding: engines round times to whole nanoseconds, upwards."""


class Work(NamedTuple):
    """Part of a layer or an edge, all row slices, in ns run alone.

    ``family_ns``, ``fragment_ns``: compute by kind of op, and by fragment; ``comm_ns``: its
    all-reduces; ``last_ns``: the last one issued; ``launch_ns``: the host's cost of issuing it all.
    """

    family_ns: Counter[str]
    fragment_ns: Counter[str]
    comm_ns: int
    last_ns: int
    launch_ns: int


class Stretch(NamedTuple):
    """One layer, one direction. ``hiding_ns``: compute by family that can hide an all-reduce."""

    blocks: tuple[Work, ...]
    hiding_ns: dict[str, float]
    compute_ns: int
    comm_ns: int


class ClosedForm:
    """Bound and estimate for the plans of one case, all of strategy ``domino``."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._layers: dict[tuple[object, ...], Work] = {}
        self._edges: dict[int, int] = {}
        self._slow: dict[tuple[object, ...], tuple[dict[str, float], float]] = {}

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Never above ``predict(case, plan).makespan_ns``."""
        stretches = self._stretches(plan)
        slow = self._slowdowns(plan)
        device = sum(_least_ns(stretch, *slow) for stretch in stretches)
        host = sum(work.launch_ns for stretch in stretches for work in stretch.blocks)
        layers, micros = self.case.model.num_hidden_layers, self.case.workload.grad_accumulation
        edges = self._edge_ns(plan)
        device = micros * layers * device + edges
        return int(max(device, micros * layers * host) * (1 - SAFETY))

    def prior_ns(self, plan: SlicePlan) -> float:
        """Estimate: all that can hide does, plus what each order exposes at a layer's seams."""
        ahead, back = stretches = self._stretches(plan)
        slow = self._slowdowns(plan)
        forward = _usual_ns(ahead, *slow) + _forward_seam_ns(plan, ahead)
        backward = _usual_ns(back, *slow) + _backward_seam_ns(plan, back)
        host = sum(work.launch_ns for stretch in stretches for work in stretch.blocks)
        layers, micros = self.case.model.num_hidden_layers, self.case.workload.grad_accumulation
        exposed = self._exposed_buckets_ns(plan, layers * backward)
        return micros * layers * max(forward + backward, host) + self._edge_ns(plan) + exposed

    def _exposed_buckets_ns(self, plan: SlicePlan, backward_ns: float) -> float:
        """Data-parallel all-reduces: what the last backward does not hide, at least the edges'."""
        if self.case.cluster.dp == 1:
            return 0.0
        shapes, duration_ns = self.case.shapes(plan), self.case.cost.duration_ns
        whole_ns = duration_ns(shapes.dp_all_reduce(shapes.rank_parameters))
        last_ns = duration_ns(shapes.dp_all_reduce(shapes.edge_parameters))
        return max(whole_ns - backward_ns, last_ns)

    def _stretches(self, plan: SlicePlan) -> tuple[Stretch, Stretch]:
        forward = tuple(self._block(plan, block, FORWARD_FRAGMENTS) for block in BLOCKS)
        backward = tuple(self._block(plan, block, BACKWARD_FRAGMENTS) for block in BLOCKS)
        return _stretch(plan, forward, plan.slices[1:3]), _stretch(plan, backward, plan.slices[3:5])

    def _block(self, plan: SlicePlan, block: str, fragments: tuple[str, ...]) -> Work:
        kind = "col" if fragments is FORWARD_FRAGMENTS else "dgrad"
        count = getattr(plan, f"{block}_{kind}_slices")
        key = (
            plan.strategy, plan.row_slices, plan.comm_ctas, plan.merge_wgrad, block, kind, count,
        )  # fmt: skip
        if key not in self._layers:
            self._layers[key] = self._add_up(plan, self._templates(plan, block, fragments))
        return self._layers[key]

    def _templates(
        self, plan: SlicePlan, block: str, fragments: tuple[str, ...]
    ) -> list[tuple[str, OpTemplate]]:
        """(fragment, op) of every slice."""
        tokens: dict[Token, None] = {}
        for row in range(plan.row_slices):
            for token in run(plan, block, fragments, row):
                merged = plan.merge_wgrad and token.fragment.endswith("_wgrad")
                tokens[token._replace(slice=ALL_SLICES) if merged else token] = None
        builder = Fragments(shapes=self.case.shapes(plan))
        return [(token.fragment, op) for token in tokens for op in builder.templates(token)]

    def _add_up(self, plan: SlicePlan, ops: Iterable[tuple[str, OpTemplate]]) -> Work:
        cost = self.case.cost
        families, fragments = Counter[str](), Counter[str]()
        comm_ns = last_ns = launch_ns = 0
        for fragment, op in ops:
            if cost.launch.mode == "async":
                launch_ns += cost.launch.cost_ns.get(op.signature.kind, 0)
            if op.lane == COMPUTE:
                spent_ns = self._compute_ns(plan, op) + self._inline_ns(op)
                families[op.signature.kind] += spent_ns
                fragments[fragment] += spent_ns
            else:
                last_ns = cost.duration_ns(op.signature)
                comm_ns += last_ns
        return Work(families, fragments, comm_ns, last_ns, launch_ns)

    def _inline_ns(self, op: OpTemplate) -> int:
        launch = self.case.cost.launch
        return launch.cost_ns.get(op.signature.kind, 0) if launch.mode == "inline" else 0

    def _compute_ns(self, plan: SlicePlan, op: OpTemplate) -> int:
        """Duration; of a weight gradient that may overwrite or add, the shorter of the two.

        Which slice comes first, and so overwrites, is the order's choice: equal slices make the
        choice indifferent, and slice 0 stands for it.
        """
        signature, cost = op.signature, self.case.cost
        if not isinstance(signature, Gemm) or signature.layout != "wgrad":
            return cost.duration_ns(signature)
        adding_ns = cost.duration_ns(signature._replace(accumulate=True))
        uneven = self.case.workload.micro_batch_size % plan.row_slices
        if op.slice > 0 and not uneven:
            return adding_ns
        return min(adding_ns, cost.duration_ns(signature._replace(accumulate=False)))

    def _edge_ns(self, plan: SlicePlan) -> int:
        """Compute of an iteration outside the layers; later micro-batches add to what the first
        one clears."""
        if plan.row_slices not in self._edges:
            shapes = self.case.shapes(plan)
            first, later = (
                Edges(fragments=Fragments(shapes=shapes, accumulate_first=adds))
                for adds in (False, True)
            )
            more = self.case.workload.grad_accumulation - 1
            self._edges[plan.row_slices] = (
                self._sum_ns(plan, first.step(1, ()))
                + self._sum_ns(plan, _micro_edges(first))
                + more * self._sum_ns(plan, _micro_edges(later))
            )
        return self._edges[plan.row_slices]

    def _sum_ns(self, plan: SlicePlan, ops: Iterable[OpTemplate]) -> int:
        return self._add_up(plan, (("", op) for op in ops)).fragment_ns[""]

    def _slowdowns(self, plan: SlicePlan) -> tuple[dict[str, float], float]:
        """By compute family beside an all-reduce, and of the all-reduce beside any of them.

        The least: of all sizes that the plan's layers send, where sizes count at all, and of long
        ops, where durations do.
        """
        rows, *cuts = plan.slices
        key = (plan.comm_ctas, rows, frozenset(cuts))
        if key not in self._slow:
            pairs = [
                {f: self.case.cost.contention.slowdowns((f, name)) for f in FAMILIES}
                for name in self._collective_names(plan, set(cuts))
            ]
            compute = {f: min(pair[f][0] for pair in pairs) / SCALE for f in FAMILIES}
            least = min(slow for pair in pairs for _, slow in pair.values()) / SCALE
            self._slow[key] = compute, least
        return self._slow[key]

    def _collective_names(self, plan: SlicePlan, cuts: set[int]) -> set[str]:
        """Contention families of the all-reduces of a plan's layers."""
        shapes = self.case.shapes(plan)
        sizes = {shapes.hidden_bytes(row) // cut for row in range(plan.row_slices) for cut in cuts}
        return {self.case.cost.family(shapes.tp_all_reduce(size)) for size in sizes}


def _micro_edges(edges: Edges) -> list[OpTemplate]:
    return [*edges.embedding(), *edges.head(), *edges.embedding_grad()]


def _stretch(plan: SlicePlan, blocks: tuple[Work, ...], pieces: tuple[int, ...]) -> Stretch:
    families = blocks[0].family_ns + blocks[1].family_ns
    hiding: dict[str, float] = dict(families)
    if plan.row_slices == 1:
        gemm_ns = 0.0
        for work, count in zip(blocks, pieces, strict=True):
            spent = work.fragment_ns
            gemm_ns += spent["b_wgrad"] + spent["a_wgrad"]
            cut = spent["a_dgrad"] if "a_dgrad" in spent else spent["b"]
            gemm_ns += cut * (count - 1) / count
        hiding = {"gemm": gemm_ns}
    return Stretch(blocks, hiding, families.total(), sum(work.comm_ns for work in blocks))


def _least_ns(stretch: Stretch, slow: dict[str, float], slow_comm: float) -> float:
    """The minimum of the module's docstring."""
    total = float(stretch.compute_ns + stretch.comm_ns)
    room = slow_comm * stretch.comm_ns
    for family in sorted(stretch.hiding_ns, key=slow.__getitem__):
        gain = 1 / slow[family] + 1 / slow_comm - 1
        beside = min(room, slow[family] * stretch.hiding_ns[family])
        total -= max(0.0, gain) * beside
        room -= beside
    return total


def _usual_ns(stretch: Stretch, slow: dict[str, float], slow_comm: float) -> float:
    """As ``_least_ns``, but an all-reduce runs beside all families alike."""
    hiding = sum(stretch.hiding_ns.values())
    slowed = sum(slow[family] * spent for family, spent in stretch.hiding_ns.items())
    if not hiding:
        return float(stretch.compute_ns + stretch.comm_ns)
    beside = min(slow_comm * stretch.comm_ns, slowed)
    gain = 1 / slow_comm - 1 + hiding / slowed
    return stretch.compute_ns + stretch.comm_ns - gain * beside


def _forward_seam_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """What waits in a layer: ``intra`` for the MLP's last all-reduce, ``paper`` for both."""
    if plan.row_slices == 1 or plan.order not in ("intra", "paper"):
        return 0.0
    attn, mlp = stretch.blocks
    other = 1 - 1 / plan.row_slices
    seam = max(0.0, mlp.last_ns - other * mlp.fragment_ns["out"])
    if plan.order == "paper":
        hidden = other * (attn.fragment_ns["out"] + mlp.fragment_ns["norm"])
        seam += max(0.0, attn.last_ns - hidden)
    return seam


def _backward_seam_ns(plan: SlicePlan, stretch: Stretch) -> float:
    """As forward; the last slice's weight gradients stand behind its all-reduce and hide it."""
    if plan.order not in ("intra", "paper"):
        return 0.0
    waiting = stretch.blocks if plan.order == "paper" else stretch.blocks[:1]
    other, seam = 1 - 1 / plan.row_slices, 0.0
    if plan.row_slices == 1:
        return seam
    for work in waiting:
        behind = work.fragment_ns["a_wgrad"]
        behind += work.fragment_ns["b_wgrad"] * (plan.wgrad == "deferred")
        share = 1.0 if plan.merge_wgrad else 1 / plan.row_slices
        seam += max(0.0, work.last_ns - share * behind - other * work.fragment_ns["norm'"])
    return seam
