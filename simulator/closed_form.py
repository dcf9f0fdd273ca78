"""Closed forms for the time of a plan: a proven lower bound and an estimate, without an engine.

Both add up durations fragment by fragment. The sums of a pass depend on few numbers of a plan, so a
space's bounds are sums over its kinds of passes (``simulator.stretch``).

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
smaller. In ``intra`` the op after a block's first gather reads it, so no compute runs beside that
gather: these gathers are added whole, and K is the rest. Embedding and head are added whole, too,
and are part of H_f where the order plays them beside layers (``simulator.edges``).

The estimate takes these sums and adds what each order exposes. It leaves out the all-reduces at the
edges, waits between ranks and what compute pays for them, and links that two groups share, so it is
mostly a little low.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.case import Case
from simulator.contention import SCALE, ComputeFamily, Family
from simulator.cost import AtClock, CostModel
from simulator.issue_order import BLOCKS, FORWARD_FRAGMENTS, BlockFragments, backward_fragments
from simulator.modules import plays_again
from simulator.ops import Signature
from simulator.overlap import EP_OVERLAP, RIVALS
from simulator.plan import SlicePlan
from simulator.recipes import Recipe, Recipes, Window, mode_of, step_key
from simulator.schedule import EP, TP
from simulator.stack import LayerKind, kinds
from simulator.stretch import (
    NO_EDGES,
    BoundGroups,
    Group,
    PassBound,
    Stretch,
    Work,
    backward_exposed_ns,
    forward_exposed_ns,
    least_ns,
    pass_ns,
    saved_ns,
    stretch_of,
)

Pass = Literal["forward", "backward"]
PASSES: Final[tuple[Pass, Pass]] = ("forward", "backward")
FAMILIES: Final = ("gemm", "attention", "pointwise")
Floats = npt.NDArray[np.float64]
SAFETY: Final = 1e-9
"""Relative margin for rounding: engines round times up to whole nanoseconds."""


class EdgeWork(NamedTuple):
    """Compute outside the layers, in ns: of the micro-batches, of one of them by family, and of the
    optimizer's step; and the energy of the first."""

    micro_ns: int
    family_ns: Counter[str]
    step_ns: int
    drawn_j: float


class Price(NamedTuple):
    """The least ns of an op, the host's ns for its launch, the least energy that it draws above
    idle, and its family."""

    least_ns: int
    launch_ns: int
    drawn_j: float
    family: str


class SpaceBounds(NamedTuple):
    """Of each plan of a space: the lower bound, ns, and the least energy that its passes draw above
    idle, J, 0 where no clock is set."""

    lower_ns: Floats
    drawn_j: Floats


class ClosedForm:
    """Bound and estimate for the plans of one case.

    ``like``: a form at the same clock that shares its caches. Its case may differ only in the
    numbers of layers of each kind, and of micro-batches.
    """

    def __init__(
        self,
        case: Case,
        cost: CostModel | None = None,
        recipes: Recipes | None = None,
        like: ClosedForm | None = None,
    ) -> None:
        self.case = case
        self.cost = cost or case.cost
        self.recipes = recipes or Recipes(case)
        self._passes: dict[tuple[object, ...], PassBound] = {}
        self._of_kinds: dict[LayerKind, ClosedForm] = {}
        self._stretched: dict[tuple[object, ...], Stretch] = like._stretched if like else {}
        self._layers: dict[tuple[object, ...], Work] = like._layers if like else {}
        self._prices: dict[tuple[tuple[Signature, ...], bool], Price] = like._prices if like else {}
        self._edges: dict[tuple[object, ...], EdgeWork] = {}
        self._steps: dict[tuple[object, ...], tuple[Work, ...]] = {}
        self._micro_edges: dict[tuple[object, ...], tuple[Work, ...]] = (
            like._micro_edges if like else {}
        )
        self._slow: dict[tuple[object, ...], tuple[dict[str, float], float]] = (
            like._slow if like else {}
        )

    def lower_bound_ns(self, plan: SlicePlan, idle_ns: float = 0, *, apart: bool = False) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``.

        It is the same for all orders of the same slices but ``intra``. ``idle_ns``: in which the
        device has nothing to do, but its host may be ahead. ``apart``: each pass begins with its
        host.
        """
        forward, backward = (self.pass_bound(plan, one) for one in PASSES)
        edges, micros = self.edges(plan), self.case.workload.grad_accumulation
        device = micros * (forward.least_ns + backward.least_ns) + edges.micro_ns
        if apart:
            device = max(device, micros * (forward.alone_ns + backward.alone_ns))
        device += edges.step_ns + idle_ns
        host = micros * (forward.launch_ns + backward.launch_ns)
        return int(max(device, host) * (1 - SAFETY))

    def bounds(
        self, groups: BoundGroups, idle_ns: Floats | float = 0, *, apart: bool = False
    ) -> SpaceBounds:
        """Return ``lower_bound_ns`` and ``drawn_j`` of each plan."""
        passes, micros = self._passes_of(groups), self.case.workload.grad_accumulation
        micro_ns, step_ns, edges_j = self._edges_of(groups)
        device = micros * passes[:, 0] + micro_ns
        if apart:
            device = np.maximum(device, micros * passes[:, 3])
        device += step_ns + idle_ns
        lower_ns = np.floor(np.maximum(device, micros * passes[:, 1]) * (1 - SAFETY))
        return SpaceBounds(lower_ns, micros * passes[:, 2] + edges_j)

    def quick_bound_ns(self, plan: SlicePlan) -> int:
        """Return ``lower_bound_ns``: at one clock there is nothing to leave out."""
        return self.lower_bound_ns(plan)

    coarse_bound_ns = quick_bound_ns

    def quick_bounds_ns(self, groups: BoundGroups) -> Floats:
        """Return ``quick_bound_ns`` of each plan."""
        return self.bounds(groups).lower_ns

    def drawn_j(self, plan: SlicePlan) -> float:
        """Return the least energy above idle of the passes; 0 where no clock is set."""
        forward, backward = (self.pass_bound(plan, one) for one in PASSES)
        micros = self.case.workload.grad_accumulation
        return micros * (forward.drawn_j + backward.drawn_j) + self.edges(plan).drawn_j

    def step_ns_of(self, groups: BoundGroups) -> Floats:
        """Return the optimizer step's ns of each plan."""
        return self._edges_of(groups)[1]

    def _passes_of(self, groups: BoundGroups) -> Floats:
        """Return the sum of both passes' bounds, a row a plan, and of ``alone_ns``."""
        whole = np.zeros((len(groups.plans), 4))
        for which in PASSES:
            group: Group = getattr(groups, which)
            bounds = [self.pass_bound(groups.plans[first], which) for first in group.first]
            rows = [(*one, one.alone_ns) for one in bounds]
            whole += np.array(rows, np.float64).reshape(-1, 4)[group.kind]
        return whole

    def _edges_of(self, groups: BoundGroups) -> tuple[Floats, Floats, Floats]:
        """Return three arrays with the sums of each plan's ops outside the layers: ``micro_ns``,
        ``step_ns``, ``drawn_j``."""
        found = [self.edges(groups.plans[first]) for first in groups.edges.first]
        columns = np.array([(one.micro_ns, one.step_ns, one.drawn_j) for one in found], np.float64)
        micro_ns, step_ns, drawn_j = columns.reshape(-1, 3).T[:, groups.edges.kind]
        return micro_ns, step_ns, drawn_j

    def pass_bound(self, plan: SlicePlan, which: Pass) -> PassBound:
        """Return the bound of a pass of all layers."""
        key = (
            which, mode_of(plan), plan.row_slices, self.slices(plan, which),
            which == "backward" and plan.merge_wgrad, waits_for_gathers(plan), joins_edges(plan),
        )  # fmt: skip
        if key not in self._passes:
            self._passes[key] = self._pass_bound(plan, which)
        return self._passes[key]

    def _pass_bound(self, plan: SlicePlan, which: Pass) -> PassBound:
        beside = self.edges(plan).family_ns if joins_edges(plan) else NO_EDGES
        device, host, drawn_j = 0.0, 0, 0.0
        for layers, one in self._kinds(plan, which):
            device += self._least_ns(plan, which, one, layers, beside)
            launch_ns, each_j = _launched(one)
            host += layers * launch_ns
            drawn_j += layers * each_j
        return PassBound(device, host, drawn_j)

    def _least_ns(
        self, plan: SlicePlan, which: Pass, one: Stretch, layers: int = 1,
        beside: Mapping[str, int] = NO_EDGES,
    ) -> float:  # fmt: skip
        """Return the least time of ``layers`` equal passes."""
        if self._has_windows(plan):
            return layers * (one.compute_ns + one.waited_ns)
        slow, waits = self.slowdowns(plan, which), waits_for_gathers(plan)
        waits &= not self.case.workload.moe_shared_expert_overlap
        return least_ns(one, *slow, waits=waits, layers=layers, edges_ns=beside)

    def least_passes(
        self, plan: SlicePlan, layers: Iterable[LayerKind]
    ) -> tuple[PassBound, PassBound]:
        """Return bounds of forward and backward of a layer of any of these kinds."""
        forms = [self.of(kind) for kind in layers]
        forward, backward = (
            PassBound(
                *map(min, zip(*(form._layer_bound(plan, which) for form in forms), strict=True))
            )
            for which in PASSES
        )
        return forward, backward

    def _layer_bound(self, plan: SlicePlan, which: Pass) -> PassBound:
        """Return the bound of a pass of one layer of a uniform stack."""
        one = self._stretch(plan, which)
        return PassBound(self._least_ns(plan, which, one), *_launched(one))

    def _kinds(self, plan: SlicePlan, which: Pass) -> list[tuple[int, Stretch]]:
        """Return the number of layers of each kind, and their pass."""
        forms = ((layers, self.of(kind)) for kind, layers in self.layer_kinds.items())
        return [(layers, form._stretch(plan, which)) for layers, form in forms]

    @cached_property
    def layer_kinds(self) -> dict[LayerKind, int]:
        """The number of layers of each kind."""
        return kinds(self.case.model, self.case.workload)

    def of(self, kind: LayerKind) -> ClosedForm:
        """Return the form of a stack of one kind; of a uniform stack its own."""
        if kind not in self._of_kinds:
            recipes = self.recipes.of(kind)
            uniform = recipes is self.recipes
            made = self if uniform else ClosedForm(recipes.case, self.cost, recipes, self)
            self._of_kinds[kind] = made
        return self._of_kinds[kind]

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return an estimate (ns): all-reduces are hidden, except where the order exposes them."""
        slow_forward, slow_backward = (self.slowdowns(plan, which) for which in PASSES)
        micros = self.case.workload.grad_accumulation
        passes = behind = 0.0
        kinds = zip(*(self._kinds(plan, which) for which in PASSES), strict=True)
        for (layers, forward), (_, backward) in kinds:
            forward_ns = pass_ns(forward, forward_exposed_ns(plan, forward), *slow_forward)
            backward_ns = pass_ns(backward, backward_exposed_ns(plan, backward), *slow_backward)
            launch_ns = sum(work.launch_ns for work in (*forward.blocks, *backward.blocks))
            passes += layers * max(forward_ns + backward_ns, launch_ns)
            behind += layers * backward_ns
        exposed = self._exposed_buckets_ns(plan, behind)
        edges = self.edges(plan)
        return micros * passes + edges.micro_ns + edges.step_ns + exposed

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
            held = shapes.held
            whole_ns = duration_ns(collective(held.rest))
            if held.experts:
                whole_ns += duration_ns(collective(held.experts, experts=True))
            last_ns = duration_ns(collective(shapes.edge_parameters))
            exposed += max(whole_ns - backward_ns, last_ns) if overlaps else whole_ns
        return exposed

    def _stretch(self, plan: SlicePlan, which: Pass) -> Stretch:
        slices = self.slices(plan, which)
        merges = which == "backward" and plan.merge_wgrad
        key = self.recipes.kinds, mode_of(plan), which, plan.row_slices, slices, merges
        if key not in self._stretched:
            fragments = self.fragments(which)
            blocks = tuple(self._block(plan, block, fragments) for block in BLOCKS)
            experts = self.case.model.num_experts > 0
            made = stretch_of(plan, blocks, slices[:2], experts=experts)
            if self._has_windows(plan):
                made = made._replace(waited_ns=self._waited(plan, which))
            if plan.strategy == EP_OVERLAP:
                made = made._replace(hiding_ns=made.hiding_ns | self._both_passes(plan))
            self._stretched[key] = made
        return self._stretched[key]

    def _both_passes(self, plan: SlicePlan) -> Counter[str]:
        """Return the compute of a layer's two passes by family: each may hide the other's
        collectives."""
        works = (
            self._block(plan, block, self.fragments(which)) for which in PASSES for block in BLOCKS
        )
        return sum((work.family_ns for work in works), Counter[str]())

    def _has_windows(self, plan: SlicePlan) -> bool:
        """Whether the bound of a plan is that of its windows: a rival's, and with experts that of
        any plan without slices whose passes run alone."""
        alone = plan.strategy not in ("domino", EP_OVERLAP)
        experts = self.case.model.num_experts > 0 and alone
        return plan.strategy in RIVALS or experts

    def _waited(self, plan: SlicePlan, which: Pass) -> float:
        """Return by how much a pass takes longer than its compute at least, for one of its lanes of
        collectives: the other may run beside it."""
        lanes = (TP, EP) if self.case.shapes(plan).exchanges_experts else (TP,)
        forward = which == "forward"
        return max(
            sum(map(self._waited_ns, self.recipes.windows(plan, forward=forward, lane=lane)))
            for lane in lanes
        )

    def _waited_ns(self, window: Window) -> float:
        """Return by how much a window takes longer than its compute at least: the formula of this
        module, with the slowdowns of each op."""
        cost, hiding, slow_comm = self.cost, [], math.inf
        lanes = {cost.family(one) for one in window.collectives}
        for ways in window.computes:
            both = [
                cost.contention.slowdowns((cost.family(one), lane))
                for one in ways
                for lane in lanes
            ]
            price = self._price(ways, replayed=False)
            inline_ns = price.launch_ns * (cost.launch.mode == "inline")
            hiding.append((min(slow for slow, _ in both) / SCALE, price.least_ns + inline_ns))
            slow_comm = min(slow_comm, *(slow / SCALE for _, slow in both))
        comm_ns = sum(map(cost.least_ns, window.collectives))
        return comm_ns - (saved_ns(hiding, comm_ns, slow_comm) if hiding else 0.0)

    def fragments(self, which: Pass) -> BlockFragments:
        """Return the fragments of a pass."""
        work = self.case.workload
        if which == "forward":
            return FORWARD_FRAGMENTS
        return backward_fragments(work.recompute, work.modules)

    def slices(self, plan: SlicePlan, which: Pass) -> tuple[int, ...]:
        """Return the column pieces that a pass sends: its own, and where layers are played again
        those of forward, too."""
        _, *columns, attn_dgrads, mlp_dgrads = plan.slices
        if which == "forward":
            return tuple(columns)
        again = plays_again(self.case.workload.recompute, self.case.workload.modules)
        return attn_dgrads, mlp_dgrads, *(columns if again else ())

    def _block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Work:
        key = self.recipes.block_key(plan, block, fragments)
        if key not in self._layers:
            self._layers[key] = self._add_up(self.recipes.block(plan, block, fragments))
        return self._layers[key]

    def _add_up(self, recipe: Recipe) -> Work:
        families, fragments = Counter[str](), Counter[str]()
        comm_ns = gather_ns = launch_ns = 0
        drawn_j = 0.0
        waited = {"norm", "residual_bwd"}  # by what is issued next
        if self.case.workload.recompute == "full":
            waited.add("norm_again")
        inline, ahead = (self.cost.launch.mode == one for one in ("inline", "async"))
        for fragment, ways, computes, replayed, times in recipe.parts:
            price = self._price(ways, replayed=replayed)
            spent_ns, launched_ns = times * price.least_ns, times * price.launch_ns
            drawn_j += times * price.drawn_j
            launch_ns += launched_ns * ahead
            if computes:
                spent_ns += launched_ns * inline
                families[price.family] += spent_ns
                fragments[fragment] += spent_ns
            else:
                comm_ns += spent_ns
                gather_ns += spent_ns * (fragment in waited)
        last_ns = self.cost.least_ns(recipe.last) if recipe.last else 0
        return Work(families, fragments, comm_ns, gather_ns, last_ns, launch_ns, drawn_j)

    def _price(self, ways: tuple[Signature, ...], *, replayed: bool) -> Price:
        """Return the least price of an op that has one of ``ways`` as its signature."""
        price = self._prices.get((ways, replayed))
        if price is None:
            cost, first = self.cost, ways[0]
            drawn_j = 0.0
            if isinstance(cost, AtClock):
                drawn_j = min(map(cost.energy_j, ways))
            least_ns = min(map(cost.least_ns, ways))
            price = Price(least_ns, cost.launch.of(first, replayed=replayed), drawn_j, first.kind)
            self._prices[ways, replayed] = price
        return price

    def edges(self, plan: SlicePlan) -> EdgeWork:
        """Return an iteration's compute outside the layers."""
        key = mode_of(plan), plan.row_slices
        if key not in self._edges:
            shared, once = self.recipes.edge_key(plan), step_key(plan)
            if shared not in self._micro_edges:
                self._micro_edges[shared] = tuple(map(self._add_up, self.recipes.micros(plan)))
            if once not in self._steps:
                self._steps[once] = tuple(map(self._add_up, self.recipes.once(plan)))
            (first, later), (clears, step) = self._micro_edges[shared], self._steps[once]
            more = self.case.workload.grad_accumulation - 1
            self._edges[key] = EdgeWork(
                sum(one.family_ns.total() for one in (clears, first))
                + more * later.family_ns.total(),
                first.family_ns | later.family_ns,
                step.family_ns.total(),
                clears.drawn_j + first.drawn_j + more * later.drawn_j,
            )
        return self._edges[key]

    def slowdowns(self, plan: SlicePlan, which: Pass) -> tuple[dict[str, float], float]:
        """Return the least slowdowns of compute families and an all-reduce of a pass beside each
        other.

        Where sizes matter, they are the least over all sizes that the pass sends.
        """
        cuts = frozenset(self.slices(plan, which))
        key = self.recipes.kinds, mode_of(plan), plan.row_slices, cuts, which
        if key not in self._slow:
            pairs = [
                {f: self.cost.contention.slowdowns((ComputeFamily(f), family)) for f in FAMILIES}
                for family in self._collective_families(plan, set(cuts), which)
            ]
            compute = {f: min(pair[f][0] for pair in pairs) / SCALE for f in FAMILIES}
            least = min(slow for pair in pairs for _, slow in pair.values()) / SCALE
            self._slow[key] = compute, least
        return self._slow[key]

    def _collective_families(self, plan: SlicePlan, cuts: set[int], which: Pass) -> set[Family]:
        """Return the contention families of the collectives of a plan's layers that count."""
        shapes = self.case.shapes(plan)
        if shapes.moves_experts_most:
            forms = [self.of(kind) for kind in self.recipes.kinds]
            recipes = (
                form.recipes.block(plan, block, form.fragments(which))
                for form in forms for block in BLOCKS
            )  # fmt: skip
            parts = [part for recipe in recipes for part in recipe.parts if not part.computes]
            if parts:
                return {self.cost.family(one) for part in parts for one in part.ways}
        whole = {1} if shapes.shards_tokens else set[int]()
        rows = range(plan.row_slices)
        sizes = {shapes.hidden_bytes(row) // cut for row in rows for cut in cuts | whole}
        return {self.cost.family(shapes.tp_all_reduce(size)) for size in sizes}


def _launched(one: Stretch) -> tuple[int, float]:
    """Return the launches (ns) and the energy (J) of a layer's pass."""
    return sum(work.launch_ns for work in one.blocks), sum(work.drawn_j for work in one.blocks)


def bound_key(plan: SlicePlan) -> tuple[object, ...]:
    """Return the values that a plan's bound depends on, as a cache key."""
    return mode_of(plan), plan.slices, plan.merge_wgrad, waits_for_gathers(plan), joins_edges(plan)


def joins_edges(plan: SlicePlan) -> bool:
    """Return whether compute of embedding and head may run beside collectives of layers: where an
    order moves tokens into other layers' repetitions."""
    return plan.strategy == "domino" and plan.order != "intra"


def waits_for_gathers(plan: SlicePlan) -> bool:
    """Return whether a block's first op waits for its gather, and nothing is issued between."""
    unsliced = plan.strategy != "domino" or (plan.row_slices == 1 and plan.order != "greedy")
    return plan.sequence_parallel and (unsliced or plan.order == "intra")
