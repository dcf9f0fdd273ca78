"""Curves: what ops, passes and edges take at least at each clock that power may set.

The sums of a pass depend on few numbers of a plan: each fragment has its sums once, and plans share
them. All curves of a case have the same clocks, highest first; one where no law of power is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from simulator.case import Case
from simulator.contention import SCALE, ContentionFamily
from simulator.cost import CostModel, moved_by
from simulator.dtypes import S_PER_NS
from simulator.issue_order import (
    AGAIN,
    BLOCKS,
    COLUMN_PARALLEL,
    FORWARD_FRAGMENTS,
    ROW_PARALLEL,
    BlockFragments,
    backward_fragments,
)
from simulator.ops import Collective, Fused, Signature
from simulator.overlap import EP_OVERLAP, RIVALS
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.recipes import Recipe, Recipes, Sliced, Window, mode_of
from simulator.schedule import EP, TP
from simulator.stack import reads_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

Pass = Literal["forward", "backward"]
PASSES: Final[tuple[Pass, Pass]] = ("forward", "backward")
FAMILIES: Final = ("gemm", "attention", "pointwise")
COUNT: Final = len(FAMILIES)
COMM, GATHER, DRAWN, WGRADS, CUT = range(COUNT, COUNT + 5)
"""Rows of a work after those of compute by family: collectives, those that a block begins with, the
energy above idle, gradients of weights, and the GEMM that is cut into pieces."""
SUMS: Final = DRAWN + 1
"""The number of rows of a pass."""
MOST_KEPT: Final = 64
"""Plans of a layout, whose sums are kept; a space's are looked at once."""
Made = TypeVar("Made")
CUT_FRAGMENTS: Final = frozenset(
    {*ROW_PARALLEL.values(), *(f"{one}_dgrad" for one in COLUMN_PARALLEL.values())}
)
WAITED: Final = frozenset({"norm", "residual_bwd"})
"""Fragments whose gathers come before anything else of their block."""


def kept(
    known: dict[Any, Made], key: object, plans: Sequence[SlicePlan], make: Callable[[], Made]
) -> Made:
    """Return what is ``known`` of ``plans``, or make it. Of few plans, as layouts share them, it is
    kept."""
    found = known.get(key)
    if found is None:
        found = make()
        if len(plans) <= MOST_KEPT:
            known[key] = found
    return found


# Prices -------------------------------------------------------------------------------------------


class OpPrice(NamedTuple):
    """The least ns of an op and the least energy that it draws above idle, J, at each clock; and
    the host's ns for its launch."""

    least_ns: Floats
    drawn_j: Floats
    launch_ns: int


class Prices:
    """Prices of ops on one machine, each computed once. ``law``: of its power, if it is known;
    ``highest_mhz``: the highest clock, 0 for the boost clock."""

    def __init__(self, cost: CostModel, law: PowerSection | None, highest_mhz: int = 0) -> None:
        self.cost, self.law = cost, law
        self.clocks = law.clocks(highest_mhz) if law else range(1)
        self.mhz = np.array(self.clocks, np.float64)
        self._known: dict[tuple[tuple[Signature, ...], bool], OpPrice] = {}

    @staticmethod
    def of(case: Case) -> Prices:
        """Return those of a case's machine."""
        return Prices(case.cost, case.power, case.cluster.clock_mhz)

    def __getitem__(self, asked: tuple[tuple[Signature, ...], bool]) -> OpPrice:
        """Return the price of an op that has one of ``ways`` as its signature, and whether it is
        replayed by a graph of a part of the layer."""
        found = self._known.get(asked)
        if found is None:
            ways, replayed = asked
            spent, drawn = zip(*map(self._at_clocks, ways), strict=True)
            launch_ns = self.cost.launch.of(ways[0], replayed=replayed)
            found = OpPrice(np.minimum.reduce(spent), np.minimum.reduce(drawn), launch_ns)
            self._known[asked] = found
        return found

    def ns(self, signature: Signature) -> Floats:
        """Return the least ns of an op."""
        return self[(signature,), False].least_ns

    def _at_clocks(self, signature: Signature) -> tuple[Floats, Floats]:
        cost, law = self.cost, self.law
        if law is None:
            return np.array([float(cost.least_ns(signature))]), np.zeros(1)
        if isinstance(signature, Fused):
            parts = signature.gemm, signature.collective
            drawn_j = np.add.reduce([self._at_clocks(one)[1] for one in parts])
            gemm_us = self._us_at_clocks(signature.gemm)
            moved_us = self._us_at_clocks(moved_by(signature))
            return _rounded(cost.fused_us(signature, gemm_us, moved_us)), drawn_j
        spent_ns = _rounded(self._us_at_clocks(signature))
        timed = cost.timed(signature)
        kept = np.minimum(self.mhz, timed.mhz) / law.boost_mhz
        drawn_j = timed.boost_w * kept**law.exponent * spent_ns * S_PER_NS
        if cost.cpu.idle_lane is not None and isinstance(signature, Collective):
            costs = map(cost.at_clock, self.clocks)
            spent_ns = np.array([float(one.least_ns(signature)) for one in costs])
        return spent_ns, drawn_j

    def _us_at_clocks(self, signature: Signature) -> Floats:
        timed = self.cost.timed(signature)
        stretch = 1.0 + timed.elasticity * (np.maximum(1.0, timed.mhz / self.mhz) - 1.0)
        found: Floats = timed.us * stretch
        return found


def _rounded(us: Floats) -> Floats:
    """Return whole nanoseconds, at least one."""
    return np.maximum(1.0, np.rint(us * 1000))


# Works --------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Sums of a fragment, a block or an edge: ``rows`` at each clock (ns; J), and the host's ns.
    ``hides``: it has compute beside which collectives run whatever is sliced."""

    rows: Floats
    launch_ns: float
    hides: bool

    @property
    def compute_ns(self) -> Floats:
        """All compute."""
        total: Floats = self.rows[:COUNT].sum(axis=0)
        return total


Works = dict[int, Work]
"""Sums of recipes by their id; who has them has the recipes, too."""
Blocks = dict[tuple[object, ...], Work]
"""Sums of a block's pass, by ``Recipes.block_key``."""


def added_up(recipe: Recipe, prices: Prices) -> Work:
    """Return the sums of a recipe."""
    launch = prices.cost.launch
    inline, ahead = launch.mode == "inline", launch.mode == "async"
    rows, launch_ns, hides = np.zeros((CUT + 1, len(prices.mhz))), 0.0, False
    for fragment, ways, computes, replayed, times in recipe.parts:
        price = prices[ways, replayed]
        spent_ns = times * price.least_ns
        rows[DRAWN] += times * price.drawn_j
        launch_ns += times * price.launch_ns * ahead
        if not computes:
            rows[COMM] += spent_ns
            if fragment in WAITED:
                rows[GATHER] += spent_ns
            continue
        if inline:
            spent_ns = spent_ns + times * price.launch_ns
        rows[FAMILIES.index(ways[0].kind)] += spent_ns
        if fragment.endswith("_wgrad"):
            rows[WGRADS] += spent_ns
        elif fragment in CUT_FRAGMENTS:
            rows[CUT] += spent_ns
        hides |= may_hide(fragment)
    return Work(rows, launch_ns, hides)


def may_hide(fragment: str) -> bool:
    """Return whether a fragment is computed again beside collectives of backward that it does not
    need; an attention core that is alone comes when none is in flight."""
    return fragment.endswith(AGAIN) and fragment != f"core_attn{AGAIN}"


# Passes of a kind of layer ------------------------------------------------------------------------


class LayerPass(NamedTuple):
    """One pass of one layer. ``rows``: the sums of both blocks; ``hiding_ns``: compute by family
    that can hide collectives; ``waited_ns``: by how much the pass of a plan whose windows are known
    takes longer than its compute at least."""

    rows: Floats
    hiding_ns: Floats
    launch_ns: float
    waited_ns: Floats | None


class LayerPasses(NamedTuple):
    """The same of several plans, along the first axis. ``windowed``: which of them have windows."""

    rows: Floats
    hiding_ns: Floats
    launch_ns: Floats
    waited_ns: Floats
    windowed: NDArray[np.bool_]

    def least_ns(self, layers: int, edges_ns: Floats, waits: Floats, slow: Floats) -> Floats:
        """Return the minimum of ``bounds`` for ``layers`` equal passes. ``edges_ns``: compute by
        family, not counted here, that may hide collectives too; ``waits``: 1 where a pass waits for
        its gathers, alone; ``slow``: as ``saved_ns`` takes it."""
        comm_ns = self.rows[:, COMM]
        hidden_ns = layers * (comm_ns - self.rows[:, GATHER] * waits)
        compute_ns = self.rows[:, :COUNT].sum(axis=1)
        found: Floats = layers * (compute_ns + comm_ns)
        found -= saved_ns(layers * self.hiding_ns + edges_ns, hidden_ns, slow)
        if self.windowed.any():
            own = layers * (compute_ns + self.waited_ns)
            return np.where(self.windowed[:, None], own, found)
        return found


def _both_of(forward: LayerPass, backward: LayerPass) -> LayerPass:
    """Return backward of a layer that is recomputed whole: any compute may hide its collectives."""
    rows, waited_ns = forward.rows + backward.rows, None
    if forward.waited_ns is not None and backward.waited_ns is not None:
        waited_ns = forward.waited_ns + backward.waited_ns
    return LayerPass(rows, rows[:COUNT], forward.launch_ns + backward.launch_ns, waited_ns)


class LayerCurves:
    """Passes of layers of one kind, for all plans of one micro-batch and its ranks; each made
    once. ``recipes``: those of a uniform stack; ``works``: sums that are known already, and
    ``attention``, those of its block; ``kept``: for layers that are recomputed whole, the same ones
    without recomputation, both of whose passes are played in backward."""

    def __init__(
        self, recipes: Recipes, prices: Prices, works: Works, attention: Blocks,
        kept: LayerCurves | None = None,
    ) -> None:  # fmt: skip
        self.recipes, self.prices, self.case = recipes, prices, recipes.case
        self.kept = kept
        self._has_experts = self.case.model.num_experts > 0
        self._works = works
        self._fragments: dict[int, Work] = {}
        self._families: dict[SlicePlan, frozenset[ContentionFamily]] = {}
        self._blocks: dict[str, Blocks] = {"attn": attention, "mlp": {}}
        self._passes: dict[tuple[object, ...], LayerPass] = {}
        self._several: dict[tuple[Pass, tuple[SlicePlan, ...]], LayerPasses] = {}

    def several(self, plans: Sequence[SlicePlan], which: Pass) -> LayerPasses:
        """Return the pass of each plan."""

        def made() -> LayerPasses:
            rows, hiding_ns, launch_ns, waited = zip(
                *(self.one(plan, which) for plan in plans), strict=True
            )
            windowed = np.array([one is not None for one in waited])
            nothing = np.zeros(len(self.prices.mhz))
            waited_ns = np.array([nothing if one is None else one for one in waited])
            return LayerPasses(
                np.array(rows), np.array(hiding_ns), np.array(launch_ns), waited_ns, windowed
            )

        return kept(self._several, (which, tuple(plans)), plans, made)

    def one(self, plan: SlicePlan, which: Pass) -> LayerPass:
        """Return the pass of a plan."""
        if self.kept and which == "forward":
            return self.kept.one(plan, which)
        pieces = slices_of(self.case, plan, which)
        merges = which == "backward" and plan.merge_wgrad
        key = which, mode_of(plan), plan.row_slices, pieces, merges
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = self._made(plan, which, pieces)
        return found

    def _made(self, plan: SlicePlan, which: Pass, pieces: tuple[int, ...]) -> LayerPass:
        if self.kept:
            return _both_of(*(self.kept.one(plan, one) for one in PASSES))
        attn, mlp = self._both(plan, which)
        rows = attn.rows + mlp.rows
        hiding_ns = rows[:COUNT]
        if plan.row_slices == 1 and not (attn.hides or mlp.hides or self._has_experts):
            gathers = which == "backward" and plan.sequence_parallel
            hiding_ns = np.zeros_like(hiding_ns)
            hiding_ns[0] = rows[WGRADS]
            for work, count in zip((attn, mlp), pieces, strict=False):
                hiding_ns[0] += (1 if gathers else (count - 1) / count) * work.rows[CUT]
        if plan.strategy == EP_OVERLAP:  # each pass may hide the other's collectives
            works = (work for one in PASSES for work in self._both(plan, one))
            hiding_ns = sum((work.rows[:COUNT] for work in works), np.zeros_like(hiding_ns))
        waited_ns = self._waited_ns(plan, which) if self._has_windows(plan) else None
        return LayerPass(rows[:SUMS], hiding_ns, attn.launch_ns + mlp.launch_ns, waited_ns)

    def families(self, plan: SlicePlan) -> frozenset[ContentionFamily]:
        """Return the contention families of the collectives of an MLP's passes that count."""
        if self.kept:
            return self.kept.families(plan)
        if plan not in self._families:
            family = self.prices.cost.family
            self._families[plan] = frozenset(
                family(way)
                for which in PASSES
                for sliced in self.recipes.block(plan, "mlp", fragments_of(self.case, which))
                for recipe, _ in sliced.recipes
                for part in recipe.parts
                if not part.computes
                for way in part.ways
            )
        return self._families[plan]

    def _both(self, plan: SlicePlan, which: Pass) -> tuple[Work, Work]:
        fragments = fragments_of(self.case, which)
        attn, mlp = (self._block(plan, block, fragments) for block in BLOCKS)
        return attn, mlp

    def _block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Work:
        counted = self.case.shapes(plan).moves_experts_most  # another lane's collectives
        key = counted, *self.recipes.block_key(plan, block, fragments)
        found = self._blocks[block].get(key)
        if found is None:
            rows, launch_ns, hides = np.zeros((CUT + 1, len(self.prices.mhz))), 0.0, False
            for sliced in self.recipes.block(plan, block, fragments):
                work = self._fragment(sliced)
                rows += work.rows
                launch_ns += work.launch_ns
                hides |= work.hides
            found = self._blocks[block][key] = Work(rows, launch_ns, hides)
        return found

    def _fragment(self, sliced: Sliced) -> Work:
        found = self._fragments.get(id(sliced))
        if found is None:
            (first, times), *more = sliced.recipes
            rows, launch_ns, hides = self._work(first)
            rows, launch_ns = times * rows, times * launch_ns
            for recipe, times in more:
                work = self._work(recipe)
                rows += times * work.rows
                launch_ns += times * work.launch_ns
                hides |= work.hides
            found = self._fragments[id(sliced)] = Work(rows, launch_ns, hides)
        return found

    def _work(self, recipe: Recipe) -> Work:
        found = self._works.get(id(recipe))
        if found is None:
            found = self._works[id(recipe)] = added_up(recipe, self.prices)
        return found

    # Windows ------------------------------------------------------------------------------------

    def _has_windows(self, plan: SlicePlan) -> bool:
        """Whether the bound of a plan is that of its windows: a rival's, and with experts that of
        any plan without slices whose passes run alone."""
        alone = plan.strategy not in ("domino", EP_OVERLAP)
        return plan.strategy in RIVALS or (self._has_experts and alone)

    def _waited_ns(self, plan: SlicePlan, which: Pass) -> Floats:
        """Return by how much a pass takes longer than its compute at least, for one of its lanes of
        collectives: the other may run beside it."""
        lanes = (TP, EP) if self.case.shapes(plan).exchanges_experts else (TP,)
        ahead, nothing = which == "forward", np.zeros(len(self.prices.mhz))
        found: Floats = np.maximum.reduce([
            sum(map(self._waited_in, self.recipes.windows(plan, forward=ahead, lane=lane)), nothing)
            for lane in lanes
        ])  # fmt: skip
        return found

    def _waited_in(self, window: Window) -> Floats:
        """Return by how much a window takes longer than its compute at least: the formula of
        ``bounds``, with the slowdowns of each op."""
        cost, slow_comm = self.prices.cost, math.inf
        hiding: list[tuple[float, Floats]] = []
        lanes = {cost.family(one) for one in window.collectives}
        for ways in window.computes:
            both = [
                cost.contention.slowdowns((cost.family(one), lane))
                for one in ways
                for lane in lanes
            ]
            price = self.prices[ways, False]
            inline_ns = price.launch_ns * (cost.launch.mode == "inline")
            hiding.append((min(slow for slow, _ in both) / SCALE, price.least_ns + inline_ns))
            slow_comm = min(slow_comm, *(slow / SCALE for _, slow in both))
        comm_ns = sum(map(self.prices.ns, window.collectives), np.zeros(len(self.prices.mhz)))
        if not hiding:
            return comm_ns
        room, saved = slow_comm * comm_ns, np.zeros_like(comm_ns)
        for slow, alone_ns in sorted(hiding, key=lambda one: one[0]):
            beside = np.minimum(room, slow * alone_ns)
            saved += max(0.0, 1 / slow + 1 / slow_comm - 1) * beside
            room = room - beside
        waited: Floats = comm_ns - saved
        return waited


def saved_ns(alone_ns: Floats, comm_ns: Floats, slow: Floats) -> Floats:
    """Return the most that compute by family and collectives of ``comm_ns`` save by running at the
    same time. ``slow``: of each plan the slowdowns of families and of a collective, then the
    families in rising order of theirs."""
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


def fragments_of(case: Case, which: Pass) -> BlockFragments:
    """Return the fragments of a pass; of layers that are recomputed whole those of its own."""
    if which == "forward":
        return FORWARD_FRAGMENTS
    work = case.workload
    kind = "none" if work.recompute == "full" else work.recompute
    return backward_fragments(kind, work.modules)


def slices_of(case: Case, plan: SlicePlan, which: Pass) -> tuple[int, ...]:
    """Return the column pieces that a pass depends on: its own, and in backward those of forward
    where it plays them again or reads them."""
    _, *columns, attn_dgrads, mlp_dgrads = plan.slices
    if which == "forward":
        return tuple(columns)
    reads = reads_columns(case.model, case.workload)
    return attn_dgrads, mlp_dgrads, *(columns if reads else ())
