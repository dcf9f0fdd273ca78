"""Recipes: how often each signature occurs in a block's pass, or at the edges of an iteration.

They depend on the case and on few numbers of a plan, not on the machine's clock: so they are
made once and priced at many clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simulator.case import Case
from simulator.edges import Edges
from simulator.fragments import SEES, Fragments
from simulator.issue_order import (
    ALL_SLICES,
    BACKWARD_FRAGMENTS,
    BLOCKS,
    FORWARD_FRAGMENTS,
    BlockFragments,
    Token,
    is_cut,
    pieces,
)
from simulator.ops import Gemm, Signature
from simulator.optimizer import NORMS, begin_step, optimizer_step
from simulator.overlap import RIVALS
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, CP, EP, TP, OpTemplate
from simulator.schedules import fixed_order
from simulator.shapes import Shapes
from simulator.sharding import Held
from simulator.specs import WGRADS_APART
from simulator.stack import kinds, reads_columns
from simulator.templates import Templates
from simulator.values import Ref


class Part(NamedTuple):
    """``times`` ops of a fragment with one of ``ways`` as their signature; ``replayed``: by a graph
    of a part of the layer."""

    fragment: str
    ways: tuple[Signature, ...]
    computes: bool
    replayed: bool
    times: int


class Recipe(NamedTuple):
    """All ops of a token, or of an edge; ``last``: its last collective."""

    parts: tuple[Part, ...]
    last: Signature | None


class Sliced(NamedTuple):
    """The recipes of a fragment, one of each kind of slice and piece, and how often it is
    played."""

    recipes: tuple[tuple[Recipe, int], ...]


class Window(NamedTuple):
    """Ops of a pass that no other op of a layer runs beside: of compute, in its ways, and of
    another lane."""

    computes: tuple[tuple[Signature, ...], ...]
    collectives: tuple[Signature, ...]


class _View(NamedTuple):
    """What the recipes of a plan's layers need beside its column pieces: the number of its mode,
    and that of the mode without what is sliced; shapes; a slice of each kind and their number; and
    whether all slices have equally many tokens.

    Slices with the same number of tokens are alike, except for the first one, which may overwrite
    gradients.
    """

    mode: int
    unsliced: int
    shapes: Shapes
    alike: list[tuple[int, int]]
    is_even: bool


class FragmentRecipes:
    """Recipes of fragments that layouts of a job share, however they divide it; ``modes``: the
    number of each mode of plans, by kinds of layers; ``unsliced_ops``: of tokens that are not cut
    into slices, for windows."""

    def __init__(self) -> None:
        self.modes: dict[tuple[object, ...], int] = {}
        self.known: dict[tuple[object, ...], Recipe] = {}
        self.unsliced_ops: dict[tuple[object, ...], list[OpTemplate]] = {}


class Recipes:
    """Recipes of the plans of one case, each made once; of a layer's passes none where it is
    recomputed whole, for they are those of one that is not.

    ``fragments``: those of layouts of the same job on the same machine, which may differ in how
    they divide it, in the size and number of micro-batches, in recomputed layers and in how
    replicas share; all else of workload and implementation must be equal.
    ``like``: recipes that share their caches, whose keys hold kinds of layers, numbers of tokens,
    ends and the plan's mode: tp, cp and the experts' division must be equal, too.
    """

    def __init__(
        self, case: Case, fragments: FragmentRecipes, like: Recipes | None = None
    ) -> None:  # fmt: skip
        self.case = case
        self.kinds = tuple(kinds(case.model, case.workload))
        self._batch = case.workload.micro_batch_size
        self._modes, self._fragments = fragments.modes, fragments.known
        self._unsliced_ops = fragments.unsliced_ops
        cluster = case.cluster
        tp, experts = (cluster.tp, cluster.domain), (cluster.ep, cluster.expert_tp)
        has_experts = any(kind.experts for kind in self.kinds)
        self._divided = {"attn": tp, "mlp": (*tp, *experts) if has_experts else tp}
        self._sliced: dict[tuple[object, ...], Sliced] = like._sliced if like else {}
        self._micro_edges: dict[tuple[object, ...], tuple[tuple[Recipe, ...], ...]] = (
            like._micro_edges if like else {}
        )
        self._windows: dict[tuple[object, ...], tuple[Window, ...]] = like._windows if like else {}
        self._steps: dict[tuple[object, ...], tuple[Recipe, Recipe, Recipe]] = {}
        self._views: dict[tuple[object, ...], _View] = {}
        self._builder: tuple[SlicePlan, Fragments] | None = None
        self._last: tuple[tuple[int, bool], list[OpTemplate]] | None = None

    def block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Iterator[Sliced]:
        """Yield the recipes of the fragments of a block's pass; equal ones are one object, which
        stays."""
        view, counts = self._view(plan), self._counts(plan, block, fragments)
        for name in fragments[block]:
            own = _counts_of(block, name, counts)
            merged = plan.merge_wgrad and name.endswith("_wgrad")
            whole = self._batch, plan.row_slices, merged, view.mode, block, name, own
            found = self._sliced.get(whole)
            if found is None:
                tokens = _tokens(plan, block, name, merged, view.alike)
                found = self._sliced[whole] = Sliced(
                    tuple((self._of(plan, one, own), times) for one, times in tokens)
                )
            yield found

    def _of(self, plan: SlicePlan, token: Token, counts: tuple[int, ...]) -> Recipe:
        """Return the recipe of a token whose fragment depends on ``counts``."""
        key = self._token_key(plan, token, counts)
        found = self._fragments.get(key)
        if found is None:
            ops = ((token.fragment, op) for op in self._ops(plan, token, key))
            found = self._fragments[key] = self._recipe(plan, ops)
        return found

    def _ops(
        self, plan: SlicePlan, token: Token, key: tuple[object, ...]
    ) -> list[OpTemplate]:  # fmt: skip
        """Return the ops of a token; they are kept of plans that may have windows, which slice
        nothing."""
        if plan.strategy == "domino":
            return self._building(plan).made(token)
        if key not in self._unsliced_ops:
            self._unsliced_ops[key] = self._building(plan).made(token)
        return self._unsliced_ops[key]

    def _token_key(
        self, plan: SlicePlan, token: Token, counts: tuple[int, ...]
    ) -> tuple[object, ...]:
        """Return what the ops of a token depend on: attention on what is sliced and on how
        sequences are divided, other fragments on the slice's number of tokens alone."""
        name, row, view = token.fragment, token.slice, self._view(plan)
        which: tuple[object, ...] = view.unsliced, row < 0 and plan.row_slices
        if "core_attn" in name:
            which = view.mode, self.case.cluster.cp
            if plan.slices_sequences:
                which += (self._batch, row, plan.row_slices)
        elif name.endswith("_wgrad"):
            which += (row > 0 and view.is_even,)
        shapes = view.shapes
        return (
            token.block, name, counts, token.piece, *which, shapes.tokens(row),
            *self._divided[token.block], shapes.moves_experts_most,
        )  # fmt: skip

    def _building(self, plan: SlicePlan) -> Fragments:
        """Return the builder of a plan's ops; the last one is kept."""
        if self._builder is None or self._builder[0] is not plan:
            self._builder = plan, Fragments(shapes=self.case.shapes(plan))
        return self._builder[1]

    def _view(self, plan: SlicePlan) -> _View:
        """Return what recipes of a plan's layers need beside its pieces."""
        mode = mode_of(plan)
        found = self._views.get((mode, plan.row_slices))
        if found is None:
            shapes = self.case.shapes(plan)
            kinds: dict[tuple[int, bool], list[int]] = {}
            for row in range(plan.row_slices):
                kinds.setdefault((shapes.tokens(row), row == 0), []).append(row)
            own, unsliced = (
                self._modes.setdefault((self.kinds, one), len(self._modes))
                for one in (mode, mode_of(plan, sliced=False))
            )
            found = self._views[mode, plan.row_slices] = _View(
                own,
                unsliced,
                shapes,
                [(rows[0], len(rows)) for rows in kinds.values()],
                len({tokens for tokens, _ in kinds}) == 1,
            )
        return found

    def _counts(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> tuple[int, ...]:
        """Return the numbers of pieces that a block's recipes depend on."""
        kind = "col" if fragments is FORWARD_FRAGMENTS else "dgrad"
        own: int = getattr(plan, f"{block}_{kind}_slices")
        if kind == "dgrad" and reads_columns(self.case.model, self.case.workload):
            return own, getattr(plan, f"{block}_col_slices")
        return (own,)

    def block_key(
        self, plan: SlicePlan, block: str, fragments: BlockFragments
    ) -> tuple[object, ...]:
        """Return the values that a block's recipes depend on, as a cache key."""
        backward = fragments is not FORWARD_FRAGMENTS
        merged, counts = backward and plan.merge_wgrad, self._counts(plan, block, fragments)
        return mode_of(plan), plan.row_slices, merged, backward, counts

    def windows(self, plan: SlicePlan, *, forward: bool, lane: int = TP) -> tuple[Window, ...]:
        """Return the windows of a layer's pass in which collectives of ``lane`` run, of a plan
        without slices."""
        key = self._batch, self._view(plan).mode, forward, lane
        if key not in self._windows:
            self._windows[key] = self._made_windows(plan, forward=forward, lane=lane)
        return self._windows[key]

    def _made_windows(self, plan: SlicePlan, *, forward: bool, lane: int) -> tuple[Window, ...]:
        ops = [op for op in self._pass(plan, forward=forward) if op.lane in (COMPUTE, lane)]
        apart = self.case.workload.pp_schedule in WGRADS_APART
        return tuple(
            Window(
                tuple(self._ways(plan, op) for op in window if op.lane == COMPUTE),
                tuple(op.signature for op in window if op.lane != COMPUTE),
            )
            for window in windows(ops, wgrads_wait=not apart)
        )

    def _pass(self, plan: SlicePlan, *, forward: bool) -> list[OpTemplate]:
        """Return a layer's ops in issue order, of a plan without slices; those of the last pass are
        kept for its other lanes."""
        key = self._view(plan).mode, forward
        if self._last is None or self._last[0] != key:
            work = self.case.workload
            order = fixed_order(plan, work.recompute, work.modules)
            tokens = (order.forward if forward else order.backward).tokens
            ahead = FORWARD_FRAGMENTS if forward else BACKWARD_FRAGMENTS
            counts = {block: self._counts(plan, block, ahead) for block in BLOCKS}
            ops: list[OpTemplate] = []
            for token in tokens:
                own = _counts_of(token.block, token.fragment, counts[token.block])
                ops += self._ops(plan, token, self._token_key(plan, token, own))
            self._last = key, ops
        return self._last[1]

    def micros(self, plan: SlicePlan) -> tuple[tuple[Recipe, ...], ...]:
        """Return the recipes of the compute outside the layers: those of the first micro-batch,
        then those of a later one, which adds to the gradients that the first one clears. Each has
        one recipe for each kind of slice that may come first in backward."""
        chunk = self.case.chunk
        ends = (chunk.embedding, chunk.head) if chunk else (True, True)
        key = self._batch, edge_key(plan), *ends
        if key not in self._micro_edges:
            first = later = self._micro(plan, accumulate_first=True)
            if not self.case.workload.implementation.zero_grads:
                first = self._micro(plan, accumulate_first=False)
            self._micro_edges[key] = first, later
        return self._micro_edges[key]

    def _micro(self, plan: SlicePlan, *, accumulate_first: bool) -> tuple[Recipe, ...]:
        templates = Templates(shapes=self.case.shapes(plan), accumulate_first=accumulate_first)
        view = self._view(plan)
        firsts = plan.rows_back[:1] if view.is_even else [row for row, _ in view.alike]
        return tuple(
            self._recipe(plan, (("", op) for op in Edges(templates=templates).whole(row)))
            for row in firsts
        )

    def once(self, plan: SlicePlan) -> tuple[Recipe, Recipe, Recipe]:
        """Return the recipes of the ops that clear the gradients, and of the optimizer's step up to
        the norm's sum over all ranks, and from there on."""
        key = step_key(plan)
        if key not in self._steps:
            shapes = self.case.shapes(plan)
            t, stepped = Templates(shapes=shapes), Held(1) if shapes.replicas > 1 else shapes.held
            step = optimizer_step(t, stepped, ())
            cut = next(number for number, op in enumerate(step) if op.role in NORMS)
            parts = begin_step(t), step[:cut], step[cut:]
            clears, sums, update = (self._recipe(plan, (("", op) for op in ops)) for ops in parts)
            self._steps[key] = clears, sums, update
        return self._steps[key]

    def _recipe(self, plan: SlicePlan, ops: Iterable[tuple[str, OpTemplate]]) -> Recipe:
        """Return the recipe of ``ops``, each with its fragment."""
        counts: Counter[tuple[str, tuple[Signature, ...], bool, bool]] = Counter()
        last: Signature | None = None
        # What may run beside the lane that is counted adds nothing for sure.
        beside = (CP, TP) if self.case.shapes(plan).moves_experts_most else (CP, EP)
        for fragment, op in ops:
            if op.lane in beside:
                continue
            counts[fragment, self._ways(plan, op), op.lane == COMPUTE, op.replayed] += 1
            if op.lane != COMPUTE:
                last = op.signature
        return Recipe(tuple(Part(*key, count) for key, count in counts.items()), last)

    def _ways(self, plan: SlicePlan, op: OpTemplate) -> tuple[Signature, ...]:
        """Return the signatures that the op may have: a wgrad may overwrite or add.

        The order decides which slice comes first and overwrites. With equal slices all choices
        cost the same, so slice 0 is taken.
        """
        signature = op.signature
        adds = self.case.workload.implementation.gradient_accumulation_fusion
        if not (isinstance(signature, Gemm) and signature.layout == "wgrad" and adds):
            return (signature,)
        adding = signature._replace(accumulate=True)
        if op.slice > 0 and self._view(plan).is_even:
            return (adding,)
        return adding, signature._replace(accumulate=False)


def _counts_of(block: str, name: str, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of a block's numbers of pieces that a fragment depends on with more than the
    names of its values."""
    alone = len(counts) == 1 and not is_cut(block, name) and name not in SEES
    return () if alone else counts


def _tokens(
    plan: SlicePlan, block: str, name: str, merged: bool, alike: list[tuple[int, int]]
) -> Iterator[tuple[Token, int]]:
    """Yield a token of each kind that a fragment has, and how many it has of it. ``alike``: a slice
    of each kind, and their number. Column pieces but the first are alike."""
    if merged:
        yield Token(block, name, ALL_SLICES), 1
        return
    cut = is_cut(block, name)
    more = pieces(plan, block, name) - 1 if cut else 0
    each = plan.slices_sequences and "core_attn" in name
    for row, times in [(row, 1) for row in range(plan.row_slices)] if each else alike:
        first = Token(block, name, row, 0 if cut else -1)
        yield first, times
        if more:
            yield first._replace(piece=1), times * more


def step_key(plan: SlicePlan) -> tuple[object, ...]:
    """Return the fields that determine the ops of a step outside its micro-batches."""
    return plan.strategy == "no_comm", plan.comm_ctas, plan.sequence_parallel


def edge_key(plan: SlicePlan) -> tuple[object, ...]:
    """Return the fields that determine the ops outside the layers."""
    return *step_key(plan), plan.row_slices, plan.slice_dim, plan.slice_balance


def mode_of(plan: SlicePlan, *, sliced: bool = True) -> tuple[object, ...]:
    """Return the fields that determine a plan's ops, and a rival's windows, besides the numbers of
    slices and the merging; ``sliced``: with what is cut into slices."""
    slicing = (plan.slice_dim, plan.slice_balance) if sliced else ()
    strategy = plan.strategy, plan.tp_comm_overlap, plan.strategy in RIVALS and plan.wgrad
    return *strategy, plan.comm_ctas, plan.sequence_parallel, *slicing


# Windows ------------------------------------------------------------------------------------------
# The parts of a layer's pass in which collectives run, for bounds of unsliced plans.
#
# Each lane is FIFO, and a collective is issued when all compute before it is done. So a pass is cut
# before each op behind which no compute starts until all collectives so far are done: ops on both
# sides of a cut never run at the same time.


def windows(ops: Sequence[OpTemplate], *, wgrads_wait: bool) -> list[list[OpTemplate]]:
    """Return the windows of a layer's ``ops``, which are in issue order, on compute and one other
    lane. ``wgrads_wait``: gradients of weights are not a pass of their own.

    Collectives that the layer does not wait for are left out.
    """
    end = len(ops)
    due, ahead = _due(ops, wgrads_wait=wgrads_wait), [end] * (end + 1)
    for place in reversed(range(end)):  # the first compute op from here on
        ahead[place] = place if ops[place].lane == COMPUTE else ahead[place + 1]
    found: list[list[OpTemplate]] = []
    latest, begin = -1, 0
    for place in range(end + 1):
        if latest <= ahead[place]:
            found.append(list(ops[begin:place]))
            begin = place
        latest = max(latest, due.get(place, -1))
    return [window for window in found if any(op.lane != COMPUTE for op in window)]


def _due(ops: Sequence[OpTemplate], *, wgrads_wait: bool) -> dict[int, int]:
    """Return the place of each collective, and that of the first op that waits for it or for one
    behind it; a place behind all ops where none does."""
    due: dict[int, int] = {}
    written: dict[Ref, int] = {}
    for place, op in enumerate(ops):
        if op.lane != COMPUTE:
            due[place] = len(ops) + 1
            written |= dict.fromkeys(op.writes, place)
        elif wgrads_wait or "_wgrad" not in op.role:
            for at in {written[ref] for ref in op.reads if ref in written}:
                due[at] = min(due[at], place)
    least = len(ops) + 1
    for place in reversed(due):
        due[place] = least = min(due[place], least)
    return due
