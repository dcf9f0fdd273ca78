"""The greedy planner: estimated durations -> an explicit order, by list scheduling.

It plays a stack of layers on one compute lane and one comm lane. Whenever the compute lane is free,
it issues one of the ready fragments:
1. the next of the chunk that it began (the fragments of one slice up to its all-reduce), because
   an interrupted chunk launches its all-reduce later;
2. else the fragment with the longest remaining path: the slice that is furthest behind;
3. else, where it would wait, a wgrad: the newest layer's first (so that the stack's first layers
   fill their own waits), and each at the latest before the layer after next begins (memory,
   data-parallel buckets). Without all-reduces there is no wait to fill: each is issued at once.
   Where launches are ordered, compute behind a collective waits until that starts: so wgrads go
   before a fragment whose collective would find its lane busy.

Layers form groups. A group is a layer, but its last fragments (those that wait for its last
all-reduces) belong to the next group. A group begins when all of the group before is issued. So one
group from the middle of the stack, far from both ends, is an issue order for any number of layers
(simulator.build drops the tokens beyond the ends).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.cost import CostModel
from simulator.fragments import Fragments
from simulator.issue_order import (
    AGAIN,
    ALL_SLICES,
    BLOCKS,
    FORWARD_FRAGMENTS,
    BlockFragments,
    IssueOrder,
    LayerOrder,
    Token,
    backward_fragments,
    slice_tokens,
)
from simulator.kernels import planner
from simulator.kernels.load import call
from simulator.ops import Signature
from simulator.schedule import COMPUTE
from simulator.shapes import Shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEPTH: Final = 6
"""Number of layers that are played."""
CHOSEN: Final = 4
"""The group that becomes the issue order."""
LAST: Final = frozenset({("mlp", "residual"), ("attn", "norm_bwd")})
"""A layer's last fragments, which wait for its last collectives."""
FIRST: Final = frozenset({("attn", "norm"), ("mlp", "residual_bwd")})
"""A layer's fragments before its first gathers."""
SHORT: Final = frozenset({"norm", "residual", "norm_bwd", "residual_bwd"})
"""Fragments between a reduce-scatter and the gather behind it."""


def plan_order(shapes: Shapes, cost: CostModel) -> LayerOrder:
    """Return the greedy order of ``shapes.plan`` on the machine that ``cost`` describes."""
    backward = backward_fragments(shapes.workload.recompute)
    return LayerOrder(
        forward=_plan_issue_order(_graph(shapes, cost, FORWARD_FRAGMENTS, 1)),
        backward=_plan_issue_order(_graph(shapes, cost, backward, -1)),
    )


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """One layer's fragments and their dependencies.

    ``parents[i]``: (layers back, fragment, whether its all-reduce must be done); ``children[i]``
    the same with layers ahead. ``compute_ns``, ``comm_ns``: durations. ``gathers``: slices gather
    their tokens. ``holds``: a collective that cannot start holds the compute behind it.
    """

    tokens: tuple[Token, ...]
    compute_ns: tuple[int, ...]
    comm_ns: tuple[int, ...]
    parents: tuple[tuple[tuple[int, int, bool], ...], ...]
    children: tuple[tuple[tuple[int, int, bool], ...], ...]
    is_wgrad: tuple[bool, ...]
    gathers: bool
    last_slice: int
    holds: bool

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The fragments as rows of ``kernels.planner``."""
        likes: dict[tuple[str, str, int], int] = {}
        shifts, rows = _shifts(self), []
        parents_end = children_end = 0
        for index, token in enumerate(self.tokens):
            like = likes.setdefault((token.block, token.fragment, token.piece), index)
            urgent = self.gathers and token.fragment.removesuffix(AGAIN) in SHORT
            parents, children = parents_end, children_end
            parents_end += len(self.parents[index])
            children_end += len(self.children[index])
            rows.append((
                self.compute_ns[index], self.comm_ns[index], self.is_wgrad[index], urgent,
                token.slice, shifts[index], like, parents, parents_end, children, children_end,
            ))  # fmt: skip
        return np.array(rows, np.int64)

    @cached_property
    def backs(self) -> NDArray[np.int64]:
        """By how many layers each parent is back."""
        return np.array([back for one in self.parents for back, _, _ in one], np.int64)

    @cached_property
    def children_rows(self) -> NDArray[np.int64]:
        """The children as rows of ``kernels.planner``."""
        rows = [child for one in self.children for child in one]
        return np.array(rows, np.int64).reshape(len(rows), 3)


def _layer_tokens(shapes: Shapes, fragments: BlockFragments) -> tuple[Token, ...]:
    plan = shapes.plan
    blocks = BLOCKS if fragments is FORWARD_FRAGMENTS else BLOCKS[::-1]
    tokens: dict[Token, None] = {}
    for block in blocks:
        for row in range(plan.row_slices):
            for token in slice_tokens(plan, block, fragments[block], row):
                if plan.merge_wgrad and token.fragment.endswith("_wgrad"):
                    token = token._replace(slice=ALL_SLICES)
                tokens[token] = None
    return tuple(tokens)


def _graph(shapes: Shapes, cost: CostModel, fragments: BlockFragments, sign: int) -> _Graph:
    tokens = _layer_tokens(shapes, fragments)
    ordered = shapes.workload.implementation.launch_order == "ordered"
    builder = Fragments(shapes=shapes)
    templates = [builder.templates(token) for token in tokens]
    durations: dict[Signature, int] = {}
    writers = {}
    compute, comm = [0] * len(tokens), [0] * len(tokens)
    for index, ops in enumerate(templates):
        for op in ops:
            if op.signature not in durations:
                durations[op.signature] = cost.duration_ns(op.signature)
            spent = compute if op.lane == COMPUTE else comm
            spent[index] += durations[op.signature]
            for ref in op.writes:
                writers[ref.name] = (index, ref.layer, op.lane != COMPUTE)
    parents: list[dict[tuple[int, int], bool]] = [{} for _ in tokens]
    children: list[dict[tuple[int, int], bool]] = [{} for _ in tokens]
    for index, ops in enumerate(templates):
        for op in ops:
            for ref in op.reads:
                if ref.name not in writers:
                    continue
                writer, layer, reduced = writers[ref.name]
                back = (layer - ref.layer) * sign
                if writer != index or back:
                    parents[index][back, writer] = reduced
                    children[writer][back, index] = reduced
    return _Graph(
        tokens=tokens,
        compute_ns=tuple(compute),
        comm_ns=tuple(comm),
        parents=tuple(tuple((b, i, r) for (b, i), r in p.items()) for p in parents),
        children=tuple(tuple((b, i, r) for (b, i), r in c.items()) for c in children),
        is_wgrad=tuple(token.fragment.endswith("_wgrad") for token in tokens),
        gathers=shapes.shards_tokens and shapes.communicates,
        last_slice=shapes.plan.row_slices - 1 if sign > 0 else shapes.plan.rows_back[-1],
        holds=ordered and cost.contention.admits_late,
    )


def _plan_issue_order(graph: _Graph) -> IssueOrder:
    """Return the chosen group's issue order. A wgrad may be issued a group late, and not the same
    ones are late in each group: a wgrad that the group issues twice stays at its first place, one
    that it does not issue comes last."""
    chosen: dict[int, Token] = {}
    for group, layer, index in issue_layers(graph, find_paths(graph), CHOSEN):
        if group == CHOSEN and index not in chosen:
            chosen[index] = graph.tokens[index]._replace(offset=layer - CHOSEN)
    for index, token in enumerate(graph.tokens):
        chosen.setdefault(index, token)
    return IssueOrder(tokens=tuple(chosen.values()))


def find_paths(graph: _Graph) -> NDArray[np.int64]:
    """Return the longest remaining path of each node (ns), numbered layer × fragments + fragment.

    Every slice counts with the durations of the slowest one, so that uneven slices stay in step.
    """
    count = len(graph.tokens)
    paths = np.zeros(DEPTH * count, np.int64)
    scratch = np.empty((4, count), np.int64)
    ordered = call(
        "find_paths", graph.rows, graph.children_rows, graph.backs, DEPTH, paths, scratch
    )
    assert ordered == count, "a layer's fragments form no cycle"
    return paths


def issue_layers(
    graph: _Graph, paths: NDArray[np.int64], last_group: int = DEPTH + 1
) -> list[list[int]]:
    """Return [group in progress, layer, fragment] of the nodes of DEPTH equal layers, in issue
    order, up to the end of ``last_group``."""
    nodes = DEPTH * len(graph.tokens)
    state = np.zeros(planner.S_SIZE, np.int64)
    state[planner.HOLDS], state[planner.DEPTH] = graph.holds, DEPTH
    state[planner.REDUCES] = any(graph.comm_ns)
    missing, ready_at = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    lists, issued = np.empty((4, nodes), np.int64), np.empty((nodes, 3), np.int64)
    done = call(
        "issue_layers", graph.rows, graph.children_rows, graph.backs, state, paths, missing,
        ready_at, lists, issued, last_group,
    )  # fmt: skip
    found: list[list[int]] = issued[:done].tolist()
    return found


def _shifts(graph: _Graph) -> list[int]:
    """Return by how many layers each fragment's group is later than its layer.

    The last fragments belong to the next layer's group. Where slices gather their tokens, those of
    all slices but the last one stay in their layer's group, with the next layer's first gathers:
    so a slice's gather is in flight while the last slice computes. What those need is recomputed
    before them.
    """
    shifts = []
    for token in graph.tokens:
        place = (token.block, token.fragment)
        again = token.fragment.endswith(AGAIN)
        ahead = graph.gathers and (
            again or (token.slice != graph.last_slice and place in LAST | FIRST)
        )
        shifts.append((place in LAST) - ahead)
    return shifts
