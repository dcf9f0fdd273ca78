"""Recipes: how often each signature occurs in a block's pass, or at the edges of an iteration.

They depend on the case and on few numbers of a plan, not on the machine's clock: so they are
made once and priced at many clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from simulator.case import Case
from simulator.edges import Edges
from simulator.fragments import Fragments
from simulator.issue_order import (
    AGAIN,
    ALL_SLICES,
    BACKWARD_FRAGMENTS,
    FORWARD_FRAGMENTS,
    BlockFragments,
    Token,
    is_cut,
    pieces,
)
from simulator.modules import plays_again
from simulator.ops import Gemm, Signature
from simulator.optimizer import begin_step, optimizer_step
from simulator.overlap import RIVALS
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, CP, EP, TP, OpTemplate, Ref
from simulator.schedules import fixed_order
from simulator.sharding import Held
from simulator.specs import WGRADS_APART
from simulator.stack import LayerKind, is_uniform, kinds, own_kind
from simulator.templates import Templates


class Part(NamedTuple):
    """``times`` ops of a fragment with one of ``ways`` as their signature; ``replayed``: by a graph
    of a part of the layer."""

    fragment: str
    ways: tuple[Signature, ...]
    computes: bool
    replayed: bool
    times: int


class Recipe(NamedTuple):
    """All ops of a pass; ``last``: its last collective."""

    parts: tuple[Part, ...]
    last: Signature | None


class Window(NamedTuple):
    """Ops of a pass that no other op of a layer runs beside: of compute, in its ways, and of
    another lane."""

    computes: tuple[tuple[Signature, ...], ...]
    collectives: tuple[Signature, ...]


class Recipes:
    """Recipes of the plans of one case, each made once. ``like``: recipes that share their caches;
    their case may differ only in the numbers of layers of each kind, and of micro-batches."""

    def __init__(self, case: Case, like: Recipes | None = None) -> None:
        self.case = case
        self.kinds = tuple(kinds(case.model, case.workload))
        self._of_kinds: dict[LayerKind, Recipes] = {}
        self._blocks: dict[tuple[object, ...], Recipe] = like._blocks if like else {}
        self._micro_edges: dict[tuple[object, ...], tuple[Recipe, Recipe]] = (
            like._micro_edges if like else {}
        )
        self._windows: dict[tuple[object, ...], tuple[Window, ...]] = like._windows if like else {}
        self._steps: dict[tuple[object, ...], tuple[Recipe, Recipe]] = {}

    def of(self, kind: LayerKind) -> Recipes:
        """Return the recipes of a stack of one kind; of a uniform stack these."""
        if kind not in self._of_kinds:
            work = self.case.workload
            model = self.case.model
            uniform = kind == own_kind(model, work) and is_uniform(model, work)
            self._of_kinds[kind] = self if uniform else Recipes(self.case.of(kind), self)
        return self._of_kinds[kind]

    @cached_property
    def _kept(self) -> Recipes:
        """Those of layers that are not recomputed."""
        kept = replace(
            self.case.workload, recompute="none", recompute_layers=0, recompute_modules=()
        )
        return Recipes(replace(self.case, workload=kept), self)

    @property
    def _again(self) -> bool:
        """Whether layers are wholly recomputed: they have the ops of those that are not, and
        forward's again."""
        return self.case.workload.recompute == "full"

    def block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Recipe:
        """Return the recipe of a block's pass, all row slices."""
        key = self.block_key(plan, block, fragments)
        if key not in self._blocks:
            self._blocks[key] = self._block(plan, block, fragments)
        return self._blocks[key]

    def _block(self, plan: SlicePlan, block: str, fragments: BlockFragments) -> Recipe:
        if not self._again:
            return self._recipe(plan, self._templates(plan, block, fragments))
        again = self._kept.block(plan, block, FORWARD_FRAGMENTS)
        if fragments is FORWARD_FRAGMENTS:
            return again
        own = self._kept.block(plan, block, BACKWARD_FRAGMENTS)
        renamed = [part._replace(fragment=f"{part.fragment}{AGAIN}") for part in again.parts]
        return Recipe((*renamed, *own.parts), own.last)

    def block_key(
        self, plan: SlicePlan, block: str, fragments: BlockFragments
    ) -> tuple[object, ...]:
        """Return the values that the recipe depends on, as a cache key."""
        kind = "col" if fragments is FORWARD_FRAGMENTS else "dgrad"
        counts = [getattr(plan, f"{block}_{kind}_slices")]
        if kind == "dgrad" and plays_again(
            self.case.workload.recompute, self.case.workload.modules
        ):
            counts.append(getattr(plan, f"{block}_col_slices"))
        merged = kind == "dgrad" and plan.merge_wgrad
        return (self.kinds, mode_of(plan), plan.row_slices, merged, block, kind, *counts)

    def windows(self, plan: SlicePlan, *, forward: bool, lane: int = TP) -> tuple[Window, ...]:
        """Return the windows of a layer's pass in which collectives of ``lane`` run, of a plan
        without slices."""
        key = self.kinds, mode_of(plan), forward, lane
        if key not in self._windows:
            self._windows[key] = self._made_windows(plan, forward=forward, lane=lane)
        return self._windows[key]

    def _made_windows(self, plan: SlicePlan, *, forward: bool, lane: int) -> tuple[Window, ...]:
        if self._again:
            again = self._kept.windows(plan, forward=True, lane=lane)
            if forward:
                return again
            return again + self._kept.windows(plan, forward=False, lane=lane)
        work = self.case.workload
        order = fixed_order(plan, work.recompute, work.modules)
        builder = Fragments(shapes=self.case.shapes(plan))
        tokens = (order.forward if forward else order.backward).tokens
        ops = [op for token in tokens for op in builder.templates(token)]
        apart = self.case.workload.pp_schedule in WGRADS_APART
        return tuple(
            Window(
                tuple(self._ways(plan, op) for op in window if op.lane == COMPUTE),
                tuple(op.signature for op in window if op.lane != COMPUTE),
            )
            for window in windows(
                [op for op in ops if op.lane in (COMPUTE, lane)], wgrads_wait=not apart
            )
        )

    def edge_key(self, plan: SlicePlan) -> tuple[object, ...]:
        """Return the cache key of a micro-batch's recipe outside the layers."""
        chunk = self.case.chunk
        ends = (chunk.embedding, chunk.head) if chunk else (True, True)
        return (mode_of(plan), plan.row_slices, *ends)

    def micros(self, plan: SlicePlan) -> tuple[Recipe, Recipe]:
        """Return the recipes of the compute outside the layers, of the first micro-batch and of a
        later one, which adds to the gradients that the first one clears."""
        key = self.edge_key(plan)
        if key not in self._micro_edges:
            shapes = self.case.shapes(plan)
            cleared = self.case.workload.implementation.zero_grads
            first, later = (
                self._listed(
                    plan, Edges(templates=Templates(shapes=shapes, accumulate_first=adds)).whole()
                )
                for adds in (cleared, True)
            )
            self._micro_edges[key] = first, later
        return self._micro_edges[key]

    def once(self, plan: SlicePlan) -> tuple[Recipe, Recipe]:
        """Return the recipes of what clears the gradients, and of the optimizer's step."""
        key = step_key(plan)
        if key not in self._steps:
            shapes = self.case.shapes(plan)
            t, stepped = Templates(shapes=shapes), Held(1) if shapes.reduces else shapes.held
            clears, step = begin_step(t), optimizer_step(t, stepped, ())
            self._steps[key] = self._listed(plan, clears), self._listed(plan, step)
        return self._steps[key]

    def _listed(self, plan: SlicePlan, ops: Iterable[OpTemplate]) -> Recipe:
        return self._recipe(plan, (("", op, 1) for op in ops))

    def _templates(
        self, plan: SlicePlan, block: str, fragments: BlockFragments
    ) -> Iterator[tuple[str, OpTemplate, int]]:
        """Yield (fragment, op, times) of all slices. Column pieces but the first are alike."""
        builder = Fragments(shapes=self.case.shapes(plan))
        each, alike = [(row, 1) for row in range(plan.row_slices)], self._alike(plan)
        for fragment in fragments[block]:
            count = pieces(plan, block, fragment) if is_cut(block, fragment) else 1
            if plan.merge_wgrad and fragment.endswith("_wgrad"):
                whole = builder.templates(Token(block, fragment, ALL_SLICES))
                yield from ((fragment, op, 1) for op in whole)
                continue
            positions = plan.slices_sequences and "core_attn" in fragment
            for row, times in each if positions else alike:
                piece = 0 if is_cut(block, fragment) else -1
                first = Token(block, fragment, row, piece)
                yield from ((fragment, op, times) for op in builder.templates(first))
                if count > 1:
                    more = builder.templates(first._replace(piece=1))
                    yield from ((fragment, op, times * (count - 1)) for op in more)

    def _alike(self, plan: SlicePlan) -> list[tuple[int, int]]:
        """Return (first slice, count) for each kind of slice. Slices with the same number of tokens
        are alike, except for the first one, which may overwrite gradients, and for the attention
        core of slices of sequences, whose keys begin with the sequence."""
        shapes = self.case.shapes(plan)
        kinds: dict[tuple[int, bool], list[int]] = {}
        for row in range(plan.row_slices):
            kinds.setdefault((shapes.tokens(row), row == 0), []).append(row)
        return [(alike[0], len(alike)) for alike in kinds.values()]

    def _recipe(self, plan: SlicePlan, ops: Iterable[tuple[str, OpTemplate, int]]) -> Recipe:
        counts: Counter[tuple[str, tuple[Signature, ...], bool, bool]] = Counter()
        last: Signature | None = None
        # What may run beside the lane that is counted adds nothing for sure.
        beside = (CP, TP) if self.case.shapes(plan).moves_experts_most else (CP, EP)
        for fragment, op, times in ops:
            if op.lane in beside:
                continue
            counts[fragment, self._ways(plan, op), op.lane == COMPUTE, op.replayed] += times
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
        shapes = self.case.shapes(plan)
        uneven = len({shapes.tokens(row) for row in range(plan.row_slices)}) > 1
        if op.slice > 0 and not uneven:
            return (adding,)
        return adding, signature._replace(accumulate=False)


def step_key(plan: SlicePlan) -> tuple[object, ...]:
    """Return the fields that determine the ops of a step outside its micro-batches."""
    return plan.strategy == "no_comm", plan.comm_ctas, plan.sequence_parallel


def mode_of(plan: SlicePlan) -> tuple[object, ...]:
    """Return the fields that determine a plan's ops, and a rival's windows, besides the numbers of
    slices and the merging."""
    slicing = plan.slice_dim, plan.slice_balance
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
