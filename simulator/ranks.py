"""Ranks: what the passes and the edges of a rank take at least, and what layouts share of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.case import Case
from simulator.contention import SCALE, ComputeFamily, ContentionFamily
from simulator.curves import (
    COUNT,
    DRAWN,
    FAMILIES,
    PASSES,
    Blocks,
    LayerCurves,
    Pass,
    Prices,
    Work,
    Works,
    added_up,
    kept,
)
from simulator.plan import SlicePlan
from simulator.recipes import FragmentRecipes, Recipe, Recipes, edge_key, mode_of
from simulator.stack import LayerKind, is_uniform, kinds, own_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Shared:
    """What bounds of all layouts of a job share: prices of the machine, recipes and sums of
    fragments, and sums of attention by how it is divided, kind of layer, micro-batch, and whether
    there are several."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.fragments = FragmentRecipes()
        self.works: Works = {}
        self.attention = defaultdict[tuple[object, ...], Blocks](dict)


class Layers:
    """What bounds of cases share that differ in nothing but the numbers of layers of each kind,
    micro-batches and their size, stages and replicas: curves of each kind of layer, and of each
    kind of rank. ``shared``: what they share with others of their job."""

    def __init__(self, shared: Shared) -> None:
        self.prices, self._shared = shared.prices, shared
        self._like: Recipes | None = None
        self._works: Works = {}
        self._kinds: dict[tuple[LayerKind, int, bool], LayerCurves] = {}
        self._ranks: dict[tuple[object, ...], Rank] = {}
        self.slow: dict[tuple[object, ...], list[float]] = {}
        self.slow_of_plans: dict[tuple[object, ...], Floats] = {}
        self.passes: dict[tuple[object, ...], PassCurves] = {}
        self.least: dict[tuple[object, ...], PassCurves] = {}
        self.last_sums: dict[tuple[object, ...], Floats] = {}

    def kind(self, kind: LayerKind, case: Case) -> LayerCurves:
        """Return the curves of a kind of layer."""
        key = kind, case.workload.micro_batch_size, case.workload.grad_accumulation > 1
        if key not in self._kinds:
            uniform = kind == own_kind(case.model, case.workload)
            uniform &= is_uniform(case.model, case.workload)
            recipes = self.recipes(case if uniform else case.of(kind))
            again = kind.recompute == "full"
            kept = self.kind(kind._replace(recompute="none"), case) if again else None
            shared, cluster = self._shared, case.cluster
            attention = shared.attention[cluster.tp, cluster.cp, cluster.domain, *key]
            self._kinds[key] = LayerCurves(recipes, self.prices, shared.works, attention, kept)
        return self._kinds[key]

    def recipes(self, case: Case) -> Recipes:
        """Return the recipes of a rank, or of a stack of one kind."""
        found = Recipes(case, self._shared.fragments, self._like)
        self._like = self._like or found
        return found

    def work(self, recipe: Recipe) -> Work:
        """Return the sums of an edge's recipe."""
        if id(recipe) not in self._works:
            self._works[id(recipe)] = added_up(recipe, self.prices)
        return self._works[id(recipe)]

    def rank(self, case: Case, rank: int | None) -> Rank:
        """Return a rank of a case; None: the only one of a case without a pipeline."""
        work = case.workload
        key: tuple[object, ...] = work.micro_batch_size, work.recompute, case.cluster.dp
        key += (work.grad_accumulation > 1,)  # pairs need several
        key += (work.recompute_layers,) if rank is None else case.rank_load(rank)
        if key not in self._ranks:
            self._ranks[key] = Rank(case if rank is None else case.of_rank(rank), self)
        return self._ranks[key]


class PassCurves(NamedTuple):
    """Of a micro-batch's pass of all layers of a rank, for several plans: the least ns and J at
    each clock, and the host's ns."""

    least_ns: Floats
    drawn_j: Floats
    launch_ns: Floats

    @property
    def alone_ns(self) -> Floats:
        """The least time of the pass if its host begins with it."""
        found: Floats = np.maximum(self.least_ns, self.launch_ns[:, None])
        return found


def joined(several: Sequence[PassCurves]) -> PassCurves:
    """Return the curves of all plans of ``several``."""
    if len(several) == 1:
        return several[0]
    return PassCurves(*map(np.concatenate, zip(*several, strict=True)))


class EdgeCurves(NamedTuple):
    """Compute outside the layers of a rank at each clock, for one plan or for several: ns and J of
    its first micro-batch, with what clears the gradients, and of a later one; ns of the optimizer's
    step up to the norm's sum over all ranks, and of the whole step."""

    first_ns: Floats
    first_j: Floats
    later_ns: Floats
    later_j: Floats
    sums_ns: Floats
    step_ns: Floats

    def micro_ns(self, micros: int) -> Floats:
        """Return the ns of all micro-batches."""
        found: Floats = self.first_ns + (micros - 1) * self.later_ns
        return found

    def drawn_j(self, micros: int) -> Floats:
        """Return the J that they draw above idle."""
        found: Floats = self.first_j + (micros - 1) * self.later_j
        return found


class Rank:
    """A rank's passes and edges. ``case``: what it plays, as a case without a pipeline."""

    def __init__(self, case: Case, layers: Layers) -> None:
        self.case, self.layers = case, layers
        self.prices = layers.prices
        self.counts = kinds(case.model, case.workload)
        self.stack = tuple(self.counts)
        self._edges: dict[tuple[object, ...], EdgeCurves] = {}
        self._several_edges: dict[tuple[SlicePlan, ...], EdgeCurves] = {}
        self._layers_alone: dict[tuple[SlicePlan, ...], tuple[Floats, Floats]] = {}
        self._most_edges: dict[tuple[SlicePlan, ...], Floats] = {}
        ends = (case.chunk.embedding, case.chunk.head) if case.chunk else (True, True)
        batch = case.workload.micro_batch_size
        self._stack_alike = batch, frozenset(kind[1:] for kind in self.stack)
        self._alike = batch, tuple(self.counts.items()), ends

    @cached_property
    def _recipes(self) -> Recipes:
        return self.layers.recipes(self.case)

    def edges(self, plan: SlicePlan) -> EdgeCurves:
        """Return the compute outside the layers."""
        key = edge_key(plan)
        found = self._edges.get(key)
        if found is None:
            first, later = map(self._least, self._recipes.micros(plan))
            clears, sums, update = (self.layers.work(one) for one in self._recipes.once(plan))
            found = self._edges[key] = EdgeCurves(
                clears.compute_ns + first.compute_ns, clears.rows[DRAWN] + first.rows[DRAWN],
                later.compute_ns, later.rows[DRAWN],
                sums.compute_ns, sums.compute_ns + update.compute_ns,
            )  # fmt: skip
        return found

    def several_edges(self, plans: Sequence[SlicePlan]) -> EdgeCurves:
        """Return the compute outside the layers of each plan."""

        def made() -> EdgeCurves:
            return EdgeCurves(*map(np.array, zip(*map(self.edges, plans), strict=True)))

        return kept(self._several_edges, tuple(plans), plans, made)

    def passes(self, plans: Sequence[SlicePlan], which: Pass) -> PassCurves:
        """Return a pass of each plan; those of ranks that are alike are computed once."""
        key = *self._alike, which, tuple(plans)
        return kept(self.layers.passes, key, plans, lambda: self.ordered(plans, which, 0.0))

    def ordered(
        self, plans: Sequence[SlicePlan], which: Pass, exposed_ns: Floats | float
    ) -> PassCurves:
        """Return a pass of each plan whose order exposes collectives of ``exposed_ns``."""
        case, clocks = self.case, len(self.prices.mhz)
        slow = self.slow(plans)
        edges_ns = np.zeros((len(plans), COUNT, clocks))
        joining = [number for number, plan in enumerate(plans) if joins_edges(plan)]
        if joining:
            edges_ns[joining] = self._most_edges_ns(tuple(plans[number] for number in joining))
        waits = self._waits(plans)
        least_ns, compute_ns, drawn_j = np.zeros((3, len(plans), clocks))
        launch_ns = np.zeros(len(plans))
        for kind, layers in self.counts.items():
            found = self.layers.kind(kind, case).several(plans, which)
            least_ns += found.least_ns(layers, edges_ns, waits, slow)
            compute_ns += layers * found.rows[:, :COUNT].sum(axis=1)
            drawn_j += layers * found.rows[:, DRAWN]
            launch_ns += layers * found.launch_ns
        least_ns = np.maximum(least_ns, compute_ns + exposed_ns)
        return PassCurves(least_ns, drawn_j, launch_ns)

    def _least(self, ways: Sequence[Recipe]) -> Work:
        """Return the least work of several ways to do the same."""
        works = [self.layers.work(one) for one in ways]
        if len(works) == 1:
            return works[0]
        return works[0]._replace(rows=np.minimum.reduce([one.rows for one in works]))

    def _most_edges_ns(self, plans: tuple[SlicePlan, ...]) -> Floats:
        """Return the compute of a micro-batch outside the layers, by family, of each plan."""

        def made() -> Floats:
            keys, rows = [edge_key(plan) for plan in plans], {}
            for key, plan in zip(keys, plans, strict=True):
                if key not in rows:
                    ways = chain(*self._recipes.micros(plan))
                    works = (self.layers.work(one) for one in ways)
                    rows[key] = np.maximum.reduce([one.rows[:COUNT] for one in works])
            return np.array([rows[key] for key in keys])

        return kept(self._most_edges, plans, plans, made)

    def least_of(
        self, plans: Sequence[SlicePlan], which: Pass, among: tuple[LayerKind, ...]
    ) -> PassCurves:
        """Return a bound of the pass of one layer of any of these kinds."""

        def made() -> PassCurves:
            slow, waits = self.slow(plans), self._waits(plans)
            no_edges = np.zeros((len(plans), COUNT, len(self.prices.mhz)))
            several = [self.layers.kind(kind, self.case).several(plans, which) for kind in among]
            return PassCurves(
                np.minimum.reduce([one.least_ns(1, no_edges, waits, slow) for one in several]),
                np.minimum.reduce([one.rows[:, DRAWN] for one in several]),
                np.minimum.reduce([one.launch_ns for one in several]),
            )

        key = *self._stack_alike, which, tuple(plans), among
        return kept(self.layers.least, key, plans, made)

    def layers_alone(self, plans: tuple[SlicePlan, ...]) -> tuple[Floats, Floats]:
        """Return the least ns and J of a micro-batch in all layers, of few plans at each clock: not
        more than those of both passes and of compute outside the layers, which may run beside
        them."""

        def made() -> tuple[Floats, Floats]:
            several = [
                (layers, self.least_of(plans, which, (kind,)))
                for kind, layers in self.counts.items()
                for which in PASSES
            ]
            return (
                np.add.reduce([layers * one.least_ns for layers, one in several]),
                np.add.reduce([layers * one.drawn_j for layers, one in several]),
            )

        return kept(self._layers_alone, plans, plans, made)

    def slow(self, plans: Sequence[SlicePlan]) -> Floats:
        """Return the slowdowns in passes of each plan, as ``saved_ns`` takes them."""

        def made() -> Floats:
            return np.array([self._slowdowns(plan) for plan in plans])

        return kept(self.layers.slow_of_plans, (*self._stack_alike, *plans), plans, made)

    def _slowdowns(self, plan: SlicePlan) -> list[float]:
        """Return the least slowdowns of compute families and of a collective by each other, then
        the families in rising order of theirs, as ``kernels.windows`` takes them.

        Where sizes matter, they are the least over all sizes that the plan's passes send.
        """
        cuts = frozenset(plan.slices[1:])
        key = *self._stack_alike, mode_of(plan), plan.row_slices, cuts
        found = self.layers.slow.get(key)
        if found is None:
            law = self.case.cost.contention
            pairs = [
                [law.slowdowns((ComputeFamily(one), family)) for one in FAMILIES]
                for family in self._collective_families(plan, cuts)
            ]
            slow = [min(pair[n][0] for pair in pairs) / SCALE for n in range(COUNT)]
            least = min(slow for pair in pairs for _, slow in pair) / SCALE
            found = [*slow, least, *sorted(range(COUNT), key=slow.__getitem__)]
            self.layers.slow[key] = found
        return found

    def _collective_families(
        self, plan: SlicePlan, cuts: frozenset[int]
    ) -> Set[ContentionFamily]:  # fmt: skip
        """Return the contention families of the collectives of a plan's layers that count."""
        case, shapes = self.case, self.case.shapes(plan)
        if shapes.moves_experts_most:
            curves = (self.layers.kind(kind, case) for kind in self.stack)
            found = frozenset[ContentionFamily]().union(*(one.families(plan) for one in curves))
            if found:
                return found
        whole = {1} if shapes.shards_tokens else set[int]()
        rows = range(plan.row_slices)
        sizes = {shapes.hidden_bytes(row) // cut for row in rows for cut in cuts | whole}
        return {case.cost.family(shapes.tp_all_reduce(size)) for size in sizes}

    def _waits(self, plans: Sequence[SlicePlan]) -> Floats:
        overlaps = self.case.workload.moe_shared_expert_overlap
        waits = [waits_for_gathers(plan) and not overlaps for plan in plans]
        return np.array(waits, np.float64)[:, None]


def joins_edges(plan: SlicePlan) -> bool:
    """Return whether compute of embedding and head may run beside collectives of layers: where an
    order moves tokens into other layers' repetitions."""
    return plan.strategy == "domino" and plan.order != "intra"


def waits_for_gathers(plan: SlicePlan) -> bool:
    """Return whether a block's first op waits for its gather, and nothing is issued between."""
    unsliced = plan.strategy != "domino" or (plan.row_slices == 1 and plan.order != "greedy")
    return plan.sequence_parallel and (unsliced or plan.order == "intra")
