"""Lower bounds of a space's plans: ``closed_form`` for all kinds of passes and all clocks at once.

A plan's bound is that of ``clocked_form``: where two curves over the clock cross, the sums of its
passes and the time in which their energy keeps the cap. Each kind of pass has its curves once, and
a plan adds up two of them.

``quick_ns`` knows no order. ``lower_bound_ns`` does, where launches are ordered: then a collective
is in flight beside the compute between it and the next one of its lane, and beside no other
(``kernels.windows``). So a pass takes its compute, and of each collective what this does not save.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.build import Builder
from simulator.case import Case
from simulator.closed_form import (
    FAMILIES,
    PASSES,
    SAFETY,
    ClosedForm,
    Pass,
    joins_edges,
    waits_for_gathers,
)
from simulator.dtypes import S_PER_NS
from simulator.further_bounds import SAFETY as CLOCK_SAFETY
from simulator.greedy import order_of
from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.kernels import lives, windows
from simulator.kernels.load import call
from simulator.op_table import Played, list_ops, rows_of, table_of
from simulator.ops import Collective, Gemm, Signature
from simulator.plan import SlicePlan
from simulator.recipes import Recipe, mode_of, step_key
from simulator.schedule import TP, Repeat
from simulator.stack import is_uniform
from simulator.stretch import BoundGroups, may_hide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

COUNT: Final = len(FAMILIES)
COMM, GATHER, WGRADS, CUT, DRAWN = range(COUNT, COUNT + 5)
"""Rows of a work behind those of compute by family: collectives, those that a block begins with,
gradients of weights, the GEMM that is cut into pieces, and the energy above idle."""
CUT_FRAGMENTS: Final = frozenset(
    {*ROW_PARALLEL.values(), *(f"{one}_dgrad" for one in COLUMN_PARALLEL.values())}
)


class Work(NamedTuple):
    """Sums of a block or an edge: ``rows`` at each clock (ns; J), and the host's ns.
    ``hides``: it has compute beside which collectives run whatever is sliced."""

    rows: Floats
    launch_ns: float
    hides: bool

    @property
    def compute_ns(self) -> Floats:
        """All compute."""
        total: Floats = self.rows[:COUNT].sum(axis=0)
        return total


class Curves(NamedTuple):
    """Of passes of all layers: the least ns and J at each clock, and the host's ns."""

    least_ns: Floats
    drawn_j: Floats
    launch_ns: Floats


class EdgeCurves(NamedTuple):
    """Compute outside the layers, at each clock: ns of the micro-batches and of the optimizer's
    step, J of the first, and ns of one micro-batch by family."""

    micro_ns: Floats
    step_ns: Floats
    drawn_j: Floats
    family_ns: Floats


class SpaceBounds:
    """Bounds of the plans of one case without a pipeline; no rivals."""

    def __init__(self, case: Case) -> None:
        self.case, self._law = case, case.power
        clocks = self._law.clocks(case.cluster.clock_mhz) if self._law else range(1)
        self._mhz = np.array(clocks, np.float64)
        self._form = ClosedForm(case)
        self._micros = case.workload.grad_accumulation
        self._works: dict[object, Work] = {}
        self._steps: dict[object, tuple[Work, ...]] = {}
        self._edges: dict[object, EdgeCurves] = {}
        self._known: dict[object, Curves] = {}
        self._prices: dict[object, tuple[Floats, Floats, int]] = {}

    # Plans --------------------------------------------------------------------------------------

    def quick_ns(self, groups: BoundGroups) -> Ints:
        """Return a bound of each plan that holds for any order of its slices."""
        forward, backward = (
            self._curves([groups.plans[first] for first in group.first.tolist()], which)
            for group, which in zip((groups.forward, groups.backward), PASSES, strict=True)
        )
        edges = [self._edge_curves(groups.plans[first]) for first in groups.edges.first.tolist()]
        micro_ns, step_ns, drawn_j = (np.array([one[row] for one in edges]) for row in range(3))
        f, b, e = groups.forward.kind, groups.backward.kind, groups.edges.kind
        last = len(self._mhz) - 1

        def at(clock: Ints) -> tuple[Floats, Floats]:
            return self._both(
                forward.least_ns[f, clock] + backward.least_ns[b, clock],
                forward.drawn_j[f, clock] + backward.drawn_j[b, clock] + drawn_j[e, clock],
                forward.launch_ns[f] + backward.launch_ns[b],
                micro_ns[e, clock], step_ns[e, clock], step_ns[e, 0],
            )  # fmt: skip

        low, high = np.zeros(len(f), np.int64), np.full(len(f), last + 1)
        while self._law and (low < high).any():
            middle = np.minimum((low + high) // 2, last)
            lower_ns, kept_ns = at(middle)
            decides = (kept_ns <= lower_ns) | (low == high)
            low, high = np.where(decides, low, middle + 1), np.where(decides, middle, high)
            high = np.maximum(low, high)
        found, before = at(np.minimum(low, last))[0], at(np.maximum(low - 1, 0))[1]
        inside = (low > 0) & (low <= last)
        return np.where(inside, np.minimum(found, before), found).astype(np.int64)

    def quick_bound_ns(self, plan: SlicePlan) -> int:
        """Return what ``quick_ns`` says of a plan."""
        return self._bound_ns(plan, ordered=False)

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``."""
        return self._bound_ns(plan, ordered=self._is_ordered)

    def _bound_ns(self, plan: SlicePlan, *, ordered: bool) -> int:
        forward, backward = (self._curves_of(plan, which, ordered=ordered) for which in PASSES)
        edges = self._edge_curves(plan)
        lower_ns, kept_ns = self._both(
            forward.least_ns + backward.least_ns,
            forward.drawn_j + backward.drawn_j + edges.drawn_j,
            forward.launch_ns + backward.launch_ns,
            edges.micro_ns, edges.step_ns, edges.step_ns[0],
        )  # fmt: skip
        decides = kept_ns <= lower_ns
        first = int(decides.argmax()) if decides.any() else len(decides)
        found = lower_ns[min(first, len(decides) - 1)]
        return int(min(found, kept_ns[first - 1]) if 0 < first < len(decides) else found)

    def _both(
        self, passes_ns: Floats, drawn_j: Floats, launch_ns: Floats, micro_ns: Floats,
        step_ns: Floats, least_step_ns: Floats,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Return the bounds of iterations at given clocks, and the least times in which they keep
        the cap there; the latter with the step at the highest clock."""
        device_ns = self._micros * passes_ns + micro_ns + step_ns
        lower_ns = np.floor(np.maximum(device_ns, self._micros * launch_ns) * (1 - SAFETY))
        if self._law is None:
            return lower_ns, lower_ns
        kept_ns = drawn_j / (self._law.cap_w - self._law.idle_w) / S_PER_NS + least_step_ns
        return lower_ns, np.floor(kept_ns * (1 - CLOCK_SAFETY))

    # Passes -------------------------------------------------------------------------------------

    def _curves_of(self, plan: SlicePlan, which: Pass, *, ordered: bool) -> Curves:
        """Return the curves of a plan's pass, in its own order or in any."""
        key = (
            which, mode_of(plan), plan.row_slices, self._form.slices(plan, which),
            which == "backward" and plan.merge_wgrad, waits_for_gathers(plan), joins_edges(plan),
            (plan.order, plan.wgrad) if ordered else (),
        )  # fmt: skip
        found = self._known.get(key)
        if found is None:
            exposed_ns = self._exposed_ns(plan, which) if ordered else 0.0
            many = self._curves([plan], which, exposed_ns)
            found = self._known[key] = Curves(*(one[0] for one in many))
        return found

    @cached_property
    def _is_ordered(self) -> bool:
        """Whether compute waits until all collectives before it have started, in layers that are
        all alike."""
        case = self.case
        order = case.workload.implementation.starts(cuda_graph=case.cluster.cuda_graph)
        alike = is_uniform(case.model, case.workload) and not case.model.num_experts
        return order == "ordered" and case.cost.contention.admits_late and alike

    def _curves(
        self, plans: Sequence[SlicePlan], which: Pass, exposed_ns: Floats | float = 0.0
    ) -> Curves:
        """Return the curves of a pass of each plan, or of one whose order exposes collectives of
        ``exposed_ns``."""
        slow = np.array([self._law_of(plan, which) for plan in plans])
        edges = np.zeros((len(plans), COUNT, len(self._mhz)))
        for number, plan in enumerate(plans):
            if joins_edges(plan):
                edges[number] = self._edge_curves(plan).family_ns
        waits = np.array([waits_for_gathers(plan) for plan in plans])
        waits &= not self.case.workload.moe_shared_expert_overlap
        least_ns, compute_ns, drawn_j = np.zeros((3, len(plans), len(self._mhz)))
        launch_ns = np.zeros(len(plans))
        for kind, layers in self._form.layer_kinds.items():
            form = self._form.of(kind)
            works = [self._blocks(form, plan, which) for plan in plans]
            rows = np.array([[work.rows for work in pair] for pair in works])
            both, hiding = rows.sum(axis=1), rows[:, :, :COUNT].sum(axis=1)
            if not form.case.model.num_experts:
                self._leave_hiding(hiding, plans, which, works, rows)
            hidden_ns = both[:, COMM] - both[:, GATHER] * waits[:, None]
            most = _saved(layers * hiding + edges, layers * hidden_ns, slow)
            least_ns += layers * both[:, : COMM + 1].sum(axis=1) - most
            compute_ns += layers * both[:, :COUNT].sum(axis=1)
            drawn_j += layers * both[:, DRAWN]
            launch_ns += [layers * (attn.launch_ns + mlp.launch_ns) for attn, mlp in works]
        least_ns = np.maximum(least_ns, compute_ns + exposed_ns)
        return Curves(least_ns, self._micros * drawn_j, launch_ns)

    def _law_of(self, plan: SlicePlan, which: Pass) -> list[float]:
        """Return the slowdowns of families and of a collective, then the families in rising order
        of theirs, as ``kernels.windows`` takes them."""
        compute, collective = self._form.slowdowns(plan, which)
        slow = [compute[family] for family in FAMILIES]
        return [*slow, collective, *sorted(range(COUNT), key=slow.__getitem__)]

    def _blocks(self, form: ClosedForm, plan: SlicePlan, which: Pass) -> list[Work]:
        fragments, again = form.fragments(which), form.case.workload.recompute == "full"
        found = []
        for block in BLOCKS:
            key = form.recipes.block_key(plan, block, fragments)
            if key not in self._works:
                recipe = form.recipes.block(plan, block, fragments)
                self._works[key] = self._added_up(recipe, again=again)
            found.append(self._works[key])
        return found

    def _leave_hiding(
        self, hiding: Floats, plans: Sequence[SlicePlan], which: Pass,
        works: Sequence[Sequence[Work]], rows: Floats,
    ) -> None:  # fmt: skip
        """Leave of the compute by family what can hide a collective (``stretch.stretch_of``)."""
        for number, plan in enumerate(plans):
            if plan.row_slices > 1 or any(work.hides for work in works[number]):
                continue
            counts = np.array(self._form.slices(plan, which)[: len(BLOCKS)])
            gathers = which == "backward" and plan.sequence_parallel
            beside = (counts if gathers else counts - 1) / counts
            hiding[number] = 0.0
            hiding[number, 0] = rows[number, :, WGRADS].sum(axis=0) + beside @ rows[number, :, CUT]

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
        what, columns = (SpaceBounds, self._mhz.tobytes()), len(self._mhz) + 1
        most = rows_of(self.case.cost, what, listing.table, self._most, columns)
        rows = most.of(listing.numbers)[ops[listing.listed, lives.O_SIGNATURE]]
        exposed_ns, law = np.empty(len(self._mhz)), np.array(self._law_of(plan, which))
        call("exposed_at", found, count, rows[:, 0].copy(), rows[:, 1:].copy(), law, exposed_ns)
        return exposed_ns

    def _most(self, one: Played) -> tuple[float, ...]:
        """Return the family of an op, and the most ns that it takes at each clock: a gradient of
        weights overwrites or adds."""
        signature, kind = one.signature, one.signature.kind
        ways: list[Signature] = [signature]
        if isinstance(signature, Gemm) and signature.layout == "wgrad":
            ways = [signature._replace(accumulate=adds) for adds in (False, True)]
        number = FAMILIES.index(kind) if kind in FAMILIES else -1
        return number, *np.maximum.reduce([self._at_clocks(way)[0] for way in ways]).tolist()

    # Sums ---------------------------------------------------------------------------------------

    def _edge_curves(self, plan: SlicePlan) -> EdgeCurves:
        key, recipes = (mode_of(plan), plan.row_slices), self._form.recipes
        found = self._edges.get(key)
        if found is None:
            first, later = map(self._added_up, recipes.micros(plan))
            once = step_key(plan)
            if once not in self._steps:
                self._steps[once] = tuple(map(self._added_up, recipes.once(plan)))
            (clears, step), more = self._steps[once], self._micros - 1
            found = self._edges[key] = EdgeCurves(
                clears.compute_ns + first.compute_ns + more * later.compute_ns,
                step.compute_ns,
                clears.rows[DRAWN] + first.rows[DRAWN] + more * later.rows[DRAWN],
                np.maximum(first.rows[:COUNT], later.rows[:COUNT]),
            )
        return found

    def _added_up(self, recipe: Recipe, *, again: bool = False) -> Work:
        """Return the sums of a recipe. ``again``: layers are recomputed whole, so that a block
        begins with the gather of a norm that is played again."""
        parts, launch = recipe.parts, self.case.cost.launch
        rows = np.zeros((DRAWN + 1, len(self._mhz)))
        if not parts:
            return Work(rows, 0.0, hides=False)
        waited = {"norm", "residual_bwd", *(("norm_again",) if again else ())}
        prices = [self._price(part.ways, replayed=part.replayed) for part in parts]
        shares = np.zeros((DRAWN, len(parts)))
        for number, part in enumerate(parts):
            if not part.computes:
                shares[COMM, number] = 1
                shares[GATHER, number] = part.fragment in waited
                continue
            shares[FAMILIES.index(part.ways[0].kind), number] = 1
            shares[WGRADS, number] = part.fragment.endswith("_wgrad")
            shares[CUT, number] = part.fragment in CUT_FRAGMENTS
        times = np.array([part.times for part in parts], np.float64)
        least, drawn = (np.array([price[row] for price in prices]) for row in range(2))
        spent, launch_ns = times[:, None] * least, times * [price[2] for price in prices]
        if launch.mode == "inline":
            spent += (launch_ns * [part.computes for part in parts])[:, None]
        rows[:DRAWN], rows[DRAWN] = shares @ spent, times @ drawn
        hides = any(may_hide(part.fragment) and part.computes for part in parts)
        return Work(rows, float(launch_ns.sum()) * (launch.mode == "async"), hides)

    def _price(self, ways: tuple[Signature, ...], *, replayed: bool) -> tuple[Floats, Floats, int]:
        """Return the least ns and J at each clock of an op that has one of ``ways`` as its
        signature, and the host's ns."""
        found = self._prices.get((ways, replayed))
        if found is None:
            spent, drawn = zip(*map(self._at_clocks, ways), strict=True)
            launch_ns = self.case.cost.launch.of(ways[0], replayed=replayed)
            found = np.minimum.reduce(spent), np.minimum.reduce(drawn), launch_ns
            self._prices[ways, replayed] = found
        return found

    def _at_clocks(self, signature: Signature) -> tuple[Floats, Floats]:
        """Return the least ns and the J above idle of an op at each clock."""
        cost, law = self.case.cost, self._law
        if law is None:
            return np.array([float(cost.least_ns(signature))]), np.zeros(1)
        timed_us, timed_mhz, elasticity, boost_w = cost.at_clock(law.boost_mhz).timed(signature)
        stretch = 1.0 + elasticity * (np.maximum(1.0, timed_mhz / self._mhz) - 1.0)
        spent_ns = np.maximum(1.0, np.rint(timed_us * stretch * 1000))
        kept = np.minimum(self._mhz, timed_mhz) / law.boost_mhz
        drawn_j = boost_w * kept**law.exponent * spent_ns * S_PER_NS
        if cost.idle_lane is not None and isinstance(signature, Collective):
            clocks = map(int, self._mhz.tolist())
            spent_ns = np.array([float(cost.at_clock(mhz).least_ns(signature)) for mhz in clocks])
        return spent_ns, drawn_j


def _saved(alone_ns: Floats, comm_ns: Floats, slow: Floats) -> Floats:
    """Return ``stretch.saved_ns`` of several passes at each clock."""
    room, saved = slow[:, COUNT, None] * comm_ns, np.zeros_like(comm_ns)
    rows = np.arange(len(slow))
    for place in range(COUNT + 1, slow.shape[1]):
        family = slow[:, place].astype(np.int64)
        slower = slow[rows, family]
        gain = np.maximum(0.0, 1 / slower + 1 / slow[:, COUNT] - 1)
        beside = np.minimum(room, slower[:, None] * alone_ns[rows, family])
        saved += gain[:, None] * beside
        room = room - beside
    return saved
