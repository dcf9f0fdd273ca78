"""Lower bounds of the time of plans, without an engine: of one plan, of a layout's, of a space.

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

Where launches are ordered, a collective is in flight beside the compute between it and the next one
of its lane, and beside no other (``kernels.windows``). So a pass of a known order takes its
compute, and of each collective what this does not save.

A rank of a pipeline plays all its passes and its step. Before its first forward, a micro-batch
passes the first chunks of all ranks before it; after its last backward it goes back through them.
So an iteration takes at least the rank's own work and these passes. That holds for each rank, and
the *critical* ones are those for which it may be most: of ranks with most layers the last, and the
one with the head, whose time no number of layers tells. With gradients of weights apart, a rank may
play its own while the others end, so only the way there counts. While the last micro-batch goes
back, a rank after the first sums the gradients of its first chunk over the replicas, in one bucket
that is whole when its last backward ends, and plays its step up to the norm's sum over all ranks:
the longer of both counts. Where messages block, each pass begins with its host, and takes as long
as that.

At clock f an iteration takes at least LB(f), the bound at that clock, and, to keep the power cap,
at least step + E(f) / (cap − idle), where E is what the passes of the busiest rank draw above idle.
The first falls with f and the second rises, and the iteration has one clock, so it takes at least
    min over f of max(LB(f), step + E(f) / (cap − idle)),
which lies where the two cross. Energy rises with f because the law's exponent is at least 1, which
no elasticity exceeds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.build import Builder
from simulator.case import Case, Chunk
from simulator.curves import FAMILIES, PASSES, Pass, Prices, slices_of
from simulator.dtypes import S_PER_NS
from simulator.greedy import order_of
from simulator.kernels import lives, windows
from simulator.kernels.load import call
from simulator.op_table import PlayedSignature, list_ops, rows_of, table_of
from simulator.ops import Gemm, Signature
from simulator.overlap import EP_OVERLAP
from simulator.pipeline.program import hosts_lead
from simulator.plan import SlicePlan
from simulator.ranks import Layers, PassCurves, Rank, Shared, joined, joins_edges, waits_for_gathers
from simulator.recipes import edge_key, mode_of
from simulator.schedule import TP, Repeat
from simulator.shapes import Shapes
from simulator.specs import WGRADS_APART
from simulator.stack import is_uniform, kinds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

SAFETY: Final = 1e-9
"""Relative margin for rounding: engines round times up to whole nanoseconds."""
CLOCK_SAFETY: Final = 1e-6
"""Relative margin for the rounding of durations to whole nanoseconds."""


# Groups of plans whose passes have the same bound, so that bounds of a space are sums of few: one
# of tens of thousands of plans has some thousand forward passes and as many backward ones.


class Group(NamedTuple):
    """Rows grouped by kind. ``first``: the index of a row of each kind; ``kind``: the kind of each
    row."""

    first: Ints
    kind: Ints


class BoundGroups(NamedTuple):
    """Groups of ``plans`` that share a bound: of the forward pass, of the backward pass, and of the
    ops outside the layers."""

    plans: Sequence[SlicePlan]
    forward: Group
    backward: Group
    edges: Group


def coded(*columns: Ints) -> Group:
    """Return the groups of rows that are equal in all ``columns``, whose numbers are ≥ 0."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    return Group(first, kind)


def numbered(values: Sequence[Hashable]) -> Group:
    """Return the groups of equal values."""
    firsts: dict[Hashable, int] = {}
    numbers: dict[Hashable, int] = {}
    kind = []
    for place, value in enumerate(values):
        firsts.setdefault(value, place)
        kind.append(numbers.setdefault(value, len(numbers)))
    return Group(np.array([*firsts.values()], np.int64), np.array(kind, np.int64))


def by_key(plans: Sequence[SlicePlan], key: Callable[[SlicePlan], Hashable]) -> Ints:
    """Return a number for each plan, equal where ``key`` is."""
    return numbered([key(plan) for plan in plans]).kind


def alone(plans: Sequence[SlicePlan]) -> BoundGroups:
    """Return the groups of few plans, one of each."""
    each = np.arange(len(plans))
    return BoundGroups(plans, *[Group(each, each)] * 3)


# Bounds -------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A rank that may be critical, by its number in the pipeline."""

    number: int
    rank: Rank
    layers_before: int


class _Curves(NamedTuple):
    """What bounds of plans add up: passes of a critical rank by kind, with what their micro-batch
    takes on the ranks before it; and edges by kind, energy and the highest clock's step those of
    the busiest rank."""

    passes: Sequence[PassCurves]
    floors_ns: Sequence[Floats]
    fills_ns: Sequence[Floats]
    drawn_j: Sequence[Floats]
    edges: Sequence[Floats]
    least_step_ns: Floats


class Bounds:
    """Bounds of the plans of one case. ``layers``: of cases that share them."""

    def __init__(self, case: Case, layers: Layers | None = None) -> None:
        self.case, self._law = case, case.power
        self._layers = layers or Layers(Shared(Prices.of(case)))
        self.prices = self._layers.prices
        self._busiest = self._place(case.busiest_rank)
        self._critical = [self._place(number) for number in case.critical_ranks]
        self._micros = case.workload.grad_accumulation
        self._leads = case.cluster.pp == 1 or hosts_lead(case.workload, case.cost)
        self._stack = tuple(kinds(case.model, case.workload))
        self._known: dict[tuple[object, ...], PassCurves] = {}

    def _place(self, number: int) -> _Place:
        case = self.case
        rank = self._layers.rank(case, number if case.cluster.pp > 1 else None)
        return _Place(number, rank, sum(chunks[0].layers for chunks in case.chunks[:number]))

    @property
    def busiest(self) -> Rank:
        """The rank with the most layers."""
        return self._busiest.rank

    # Plans --------------------------------------------------------------------------------------

    def any_order_ns(self, plans: Sequence[SlicePlan]) -> list[int]:
        """Return a bound of each plan that holds for any order of its slices."""
        bounds: list[int] = self.quick_ns(alone(plans)).tolist()
        return bounds

    def floors_ns(self, plans: tuple[SlicePlan, ...]) -> list[int]:
        """Return a bound of each of few plans, by the times of its layers alone: quick where cases
        share layers. ``any_order_ns`` is mostly tighter, but not where a rank has several kinds of
        layers, each of which may hide its collectives beside the same compute outside of them."""
        kept_ns, found = np.zeros((1, 1)), []
        if self._law:
            drawn_j = self._micros * self.busiest.layers_alone(plans)[1]
            kept_ns = self._kept_ns(drawn_j) * (1 - CLOCK_SAFETY)
            kept_ns[:, -1] = 0  # what keeps the cap at no clock runs at the lowest
        apart = self.case.workload.pp_schedule in WGRADS_APART
        for _, rank, before in self._critical:
            least_ns = self._micros * rank.layers_alone(plans)[0]
            for which in PASSES[: 1 if apart else 2] if before else ():
                least_ns += before * rank.least_of(plans, which, self._stack).least_ns
            found.append(np.maximum(least_ns, kept_ns).min(axis=1))
        floors_ns = np.maximum.reduce(found) * (1 - SAFETY)
        return [*map(int, floors_ns)]

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``."""
        return self.lower_bounds_ns([plan])[0]

    def lower_bounds_ns(self, plans: Sequence[SlicePlan]) -> list[int]:
        """Return ``lower_bound_ns`` of each plan."""
        forward, backward = (
            numbered([self._key(plan, which, self._is_ordered) for plan in plans])
            for which in PASSES
        )
        groups = BoundGroups(plans, forward, backward, numbered([*map(edge_key, plans)]))
        found: list[int] = self._bounds_ns(groups, ordered=self._is_ordered).tolist()
        return found

    def clock(self, plan: SlicePlan) -> int:
        """Return the clock, of ``prices.clocks``, from which on the cap decides no longer."""
        curves, clocks = self._curves(self._busiest, [plan], [plan], [plan]), self.prices.clocks
        lower_ns, kept_ns = self._at(curves, 0, 0, 0, np.arange(len(clocks)))
        decides = kept_ns <= lower_ns
        return clocks[int(decides.argmax()) if decides.any() else -1]

    def quick_ns(self, groups: BoundGroups) -> Ints:
        """Return a bound of each plan that holds for any order of its slices."""
        return self._bounds_ns(groups)

    def _bounds_ns(self, groups: BoundGroups, *, ordered: bool = False) -> Ints:
        found: Ints = np.maximum.reduce([
            self._bounds_by(place, groups, ordered=ordered) for place in self._critical
        ])  # fmt: skip
        return found

    def _bounds_by(self, place: _Place, groups: BoundGroups, *, ordered: bool) -> Ints:
        """Return the bounds by what one rank plays."""
        plans = groups.plans
        curves = self._curves(
            place, *([plans[first] for first in one.first.tolist()] for one in groups[1:]),
            ordered=ordered,
        )  # fmt: skip
        f, b, e = groups.forward.kind, groups.backward.kind, groups.edges.kind
        last = len(self.prices.mhz) - 1
        low, high = np.zeros(len(f), np.int64), np.full(len(f), last + 1)
        while self._law and (low < high).any():
            middle = np.minimum((low + high) // 2, last)
            lower_ns, kept_ns = self._at(curves, f, b, e, middle)
            decides = (kept_ns <= lower_ns) | (low == high)
            low, high = np.where(decides, low, middle + 1), np.where(decides, middle, high)
            high = np.maximum(low, high)
        found = self._at(curves, f, b, e, np.minimum(low, last))[0]
        before = self._at(curves, f, b, e, np.maximum(low - 1, 0))[1]
        inside = (low > 0) & (low <= last)
        return np.where(inside, np.minimum(found, before), found).astype(np.int64)

    def _at(
        self, curves: _Curves, f: Ints | int, b: Ints | int, e: Ints | int, clock: Ints
    ) -> tuple[Floats, Floats]:
        """Return the bounds of iterations of given kinds at given clocks, and the least times in
        which they keep the cap there; the latter with the step at the highest clock."""
        micros, (forward, backward), (micro_ns, step_ns, edges_j, sums_ns) = (
            self._micros, curves.passes, curves.edges,
        )  # fmt: skip
        device_ns = forward.least_ns[f, clock] + backward.least_ns[b, clock]
        device_ns = micros * device_ns + micro_ns[e, clock]
        host_ns = micros * (forward.launch_ns[f] + backward.launch_ns[b])
        fill_ns: Floats | float = 0.0
        if self.case.cluster.pp > 1:
            way_ns, back_ns, last_ns = curves.fills_ns
            after_ns = np.maximum(back_ns[b, clock] - sums_ns[e, clock], last_ns[b, clock])
            fill_ns = np.floor(way_ns[f, clock] + after_ns)
        if not self._leads:
            ahead_ns, behind_ns = curves.floors_ns
            device_ns = np.maximum(device_ns, micros * (ahead_ns[f, clock] + behind_ns[b, clock]))
        device_ns += step_ns[e, clock] + (fill_ns if self._leads else 0.0)
        lower_ns = np.floor(np.maximum(device_ns, host_ns) * (1 - SAFETY))
        lower_ns += 0.0 if self._leads else fill_ns
        if self._law is None:
            return lower_ns, lower_ns
        ahead_j, behind_j = curves.drawn_j
        drawn_j = ahead_j[f, clock] + behind_j[b, clock] + edges_j[e, clock]
        kept_ns = self._kept_ns(drawn_j) + curves.least_step_ns[e]
        return lower_ns, np.floor(kept_ns * (1 - CLOCK_SAFETY))

    def _kept_ns(self, drawn_j: Floats) -> Floats:
        """Return the least time in which the energy above idle keeps the cap."""
        assert self._law is not None
        found: Floats = drawn_j / (self._law.cap_w - self._law.idle_w) / S_PER_NS
        return found

    # Parts --------------------------------------------------------------------------------------

    def _curves(
        self, place: _Place, forward: list[SlicePlan], backward: list[SlicePlan],
        edges: list[SlicePlan], *, ordered: bool = False,
    ) -> _Curves:  # fmt: skip
        """Return the curves of plans of each kind of pass and of edge; ``ordered``: in their own
        orders."""
        both = list(zip((forward, backward), PASSES, strict=True))
        if ordered or len(forward) == 1 == len(backward):
            passes = [
                joined([self._kept(place.rank, plan, which, ordered=ordered) for plan in plans])
                for plans, which in both
            ]
        else:
            passes = [place.rank.passes(plans, which) for plans, which in both]
        drawing = passes
        if self.busiest is not place.rank:
            drawing = [self.busiest.passes(plans, which) for plans, which in both]
        drawn_j = [self._micros * one.drawn_j for one in drawing]
        own, most = place.rank.several_edges(edges), self.busiest.several_edges(edges)
        floors_ns: Sequence[Floats] = ()
        fills_ns: Sequence[Floats] = ()
        if self.case.cluster.pp > 1:
            floors_ns = [
                np.where(_are_apart(plans)[:, None], one.alone_ns, one.least_ns)
                for (plans, _), one in zip(both, passes, strict=True)
            ]
            fills_ns = self._fills_ns(place, forward, backward)
        return _Curves(
            passes, floors_ns, fills_ns, drawn_j,
            (own.micro_ns(self._micros), own.step_ns, most.drawn_j(self._micros), own.sums_ns),
            most.step_ns[:, 0],
        )  # fmt: skip

    def _kept(self, rank: Rank, plan: SlicePlan, which: Pass, *, ordered: bool) -> PassCurves:
        """Return the curves of a plan's pass on a rank, in its own order or in any."""
        key = id(rank), *self._key(plan, which, ordered)
        found = self._known.get(key)
        if found is None:
            knows = ordered and plan.strategy == "domino"
            exposed_ns = self._exposed_ns(plan, which) if knows else 0.0
            found = self._known[key] = rank.ordered([plan], which, exposed_ns)
        return found

    def _key(self, plan: SlicePlan, which: Pass, ordered: bool) -> tuple[object, ...]:
        """Return the values that the curves of a plan's pass depend on, as a cache key."""
        return (
            which, mode_of(plan), plan.row_slices, slices_of(self.case, plan, which),
            which == "backward" and plan.merge_wgrad, waits_for_gathers(plan), joins_edges(plan),
            (plan.order, plan.wgrad) if ordered else (),
        )  # fmt: skip

    def _fills_ns(
        self, place: _Place, forward: Sequence[SlicePlan], backward: Sequence[SlicePlan]
    ) -> tuple[Floats, Floats, Floats]:
        """Return what a micro-batch takes on the ranks before the critical one, on its way there
        and back; and the sum of gradients that no pass hides."""
        workload = self.case.workload
        ways = []
        for plans, which in zip((forward, backward), PASSES, strict=True):
            one = place.rank.least_of(plans, which, self._stack)
            apart = _are_apart(plans)[:, None] & (not self._leads)
            ways.append(place.layers_before * np.where(apart, one.alone_ns, one.least_ns))
        way_ns, back_ns = ways
        if workload.pp_schedule in WGRADS_APART:
            back_ns = np.zeros_like(back_ns)
        last_ns = np.zeros_like(back_ns)
        if place.number > 0 and workload.overlap_grad_reduce:
            summed_ns = {
                alone: self._last_sum_ns(place.number, plan)
                for alone, plan in {one.strategy == "no_comm": one for one in backward}.items()
            }
            last_ns = np.array([summed_ns[plan.strategy == "no_comm"] for plan in backward])
        return way_ns, back_ns, last_ns

    def _last_sum_ns(self, rank: int, plan: SlicePlan) -> Floats:
        """Return the time of a rank's last sum of gradients."""
        case, known = self.case, self._layers.last_sums
        chunk = case.chunks[rank][0]
        key = case.cluster, chunk, case.workload.data_parallel, plan.strategy == "no_comm"
        if key not in known:
            known[key] = self._summed_ns(case.shapes(plan), chunk)
        return known[key]

    def _summed_ns(self, whole: Shapes, chunk: Chunk) -> Floats:
        """Return the time in which replicas sum the gradients of a chunk."""
        found = np.zeros(len(self.prices.mhz))
        if not whole.reduces:
            return found
        held = chunk.of(whole).held
        if held.experts:
            found += self.prices.ns(whole.dp_reduction(held.experts, experts=True))
        if held.rest:
            found += self.prices.ns(whole.dp_reduction(held.rest))
        return found

    # Orders -------------------------------------------------------------------------------------

    @cached_property
    def _is_ordered(self) -> bool:
        """Whether compute waits until all collectives before it have started, in layers that are
        all alike."""
        case = self.case
        order = case.workload.implementation.starts(cuda_graph=case.cluster.cuda_graph)
        alike = is_uniform(case.model, case.workload) and not case.model.num_experts
        admits = order == "ordered" and case.cost.contention.admits_late
        return admits and alike and case.cluster.pp == 1

    def _exposed_ns(self, plan: SlicePlan, which: Pass) -> Floats:
        """Return how much of its collectives a pass does not hide in a plan's order."""
        builder = Builder(self.case.shapes(plan), order_of(self.case, plan))
        fragments, backward = builder.fragments(first=True), which == "backward"
        segments = (
            builder.backward(fragments, last=self._micros == 1)
            if backward
            else builder.forward(fragments, first=True)
        )
        listing = list_ops(table_of(fragments.shared), (Repeat(segments=tuple(segments)),))
        ops, refs, _ = listing.with_refs(lives.R_VALUE)
        times = np.minimum(listing.segments[:, lives.G_COUNT], 3)
        lengths = listing.segments[:, lives.G_OPS_END] - listing.segments[:, lives.G_OPS]
        found = np.empty((int(times @ lengths), windows.COLUMNS), np.int64)
        count = call(
            "find_windows", ops, refs, listing.listed, listing.segments, TP,
            -1 if backward else 1, found,
        )  # fmt: skip
        mhz = self.prices.mhz
        what, columns = (Bounds, mhz.tobytes()), len(mhz) + 1
        most = rows_of(self.case.cost, what, listing.table, self._most, columns)
        rows = most.of(listing.numbers)[ops[listing.listed, lives.O_SIGNATURE]]
        exposed_ns, law = np.empty(len(mhz)), self.busiest.slow([plan])[0]
        call("exposed_at", found, count, rows[:, 0].copy(), rows[:, 1:].copy(), law, exposed_ns)
        return exposed_ns

    def _most(self, one: PlayedSignature) -> tuple[float, ...]:
        """Return the family of an op, and the most ns that it takes at each clock: a gradient of
        weights overwrites or adds."""
        signature, kind = one.signature, one.signature.kind
        ways: list[Signature] = [signature]
        if isinstance(signature, Gemm) and signature.layout == "wgrad":
            ways = [signature._replace(accumulate=adds) for adds in (False, True)]
        number = FAMILIES.index(kind) if kind in FAMILIES else -1
        most_ns = np.maximum.reduce(list(map(self.prices.ns, ways)))
        launch = self.case.cost.launch
        if number >= 0 and launch.mode == "inline":
            most_ns = most_ns + launch.of(signature, replayed=one.replayed)
        return number, *most_ns.tolist()


def _are_apart(plans: Sequence[SlicePlan]) -> NDArray[np.bool_]:
    """Return whether passes of each plan run with no other beside them."""
    return np.array([plan.strategy != EP_OVERLAP for plan in plans])
