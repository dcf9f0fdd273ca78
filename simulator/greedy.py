"""The greedy planner: estimated durations -> an explicit order, by list scheduling.

It plays a stack of layers on one compute lane and one comm lane. Whenever the compute lane is free,
it issues one of the ready fragments:
1. the next of the chunk that it began (the fragments of one slice up to its all-reduce), because
   an interrupted chunk launches its all-reduce later;
2. else the fragment with the longest remaining path: the slice that is furthest behind;
3. else, where it would wait, a wgrad: the newest layer's first (so that the stack's first layers
   fill their own waits), and each before the layer after next begins (to save memory and to
   complete data-parallel buckets). Without all-reduces there is no wait to fill: each is issued at
   once. Where launches are ordered, compute after a collective waits until that starts, so wgrads
   go before a fragment whose collective would find its lane busy.

Layers form groups. A group is a layer, but its last fragments (those that wait for its last
all-reduces) belong to the next group. A group begins when all of the group before is issued. So one
group from the middle of the stack, far from both ends, is an issue order for any number of layers
(simulator.build drops the tokens beyond the ends).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.case import Case
from simulator.cost import CostModel
from simulator.fragments import Fragments
from simulator.issue_order import (
    ALL_SLICES,
    BLOCKS,
    FORWARD_FRAGMENTS,
    IssueOrder,
    LayerOrder,
    Token,
    backward_fragments,
    pieces,
    slice_tokens,
    with_blocks_again,
)
from simulator.kernels import lives, planner
from simulator.kernels.load import call
from simulator.modules import fitting
from simulator.op_table import durations_of, table_of
from simulator.plan import SlicePlan
from simulator.schedules import fixed_order
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
"""Fragments between a reduce-scatter and the gather after it."""


def plan_order(shapes: Shapes, cost: CostModel) -> LayerOrder:
    """Return the greedy order of ``shapes.plan`` on the machine that ``cost`` describes."""
    builder = Fragments(shapes=shapes)
    forward, backward = (_order_of(builder, cost, backward=back) for back in (False, True))
    return LayerOrder(forward=forward, backward=backward)


def _order_of(builder: Fragments, cost: CostModel, *, backward: bool) -> IssueOrder:
    """Return the order of a pass, which is planned once for all plans that share it."""
    shapes = builder.shapes
    key = (
        plan_order, table_of(builder.shared), backward, shapes.plan.row_slices,
        backward and shapes.plan.merge_wgrad, shapes.launch_order,
        *shapes.pieces(backward=backward),
    )  # fmt: skip
    found: IssueOrder | None = cost.kept.get(key)
    if found is None:
        found = plan_issue_order(_Pass(builder, cost, backward=backward).graph())
        modules = shapes.workload.modules
        if backward and fitting(modules, experts=shapes.model.num_experts > 0) != modules:
            found = with_blocks_again(found, "mlp", modules)
        cost.kept[key] = found
    return found


class _Slice(NamedTuple):
    """One slice's fragments of a block. ``rows``: as ``kernels.planner`` has them, without
    durations and dependencies; ``ops``: rows of the op table; ``owners``: each one's fragment."""

    tokens: tuple[Token, ...]
    rows: NDArray[np.int64]
    ops: NDArray[np.int64]
    owners: NDArray[np.int64]


class Graph(NamedTuple):
    """One layer's fragments and their dependencies, as ``kernels.planner`` has them. ``holds``: a
    collective that cannot start holds up the compute after it."""

    tokens: tuple[Token, ...]
    rows: NDArray[np.int64]
    children: NDArray[np.int64]
    backs: NDArray[np.int64]
    holds: bool


class _Pass:
    """The fragments of a layer in a pass."""

    def __init__(self, builder: Fragments, cost: CostModel, *, backward: bool) -> None:
        shapes = builder.shapes
        self.builder, self.cost, self.backward = builder, cost, backward
        self.plan = shapes.plan
        self.gathers = shapes.shards_tokens and shapes.communicates
        self.last_slice = self.plan.rows_back[-1] if backward else self.plan.row_slices - 1
        ordered = shapes.launch_order == "ordered"
        self.holds = ordered and cost.contention.admits_late

    def graph(self) -> Graph:
        """Return the fragments with their durations and dependencies."""
        blocks = BLOCKS[::-1] if self.backward else BLOCKS
        slices, likes, begins, count = list[_Slice](), list[int](), list[int](), 0
        for block in blocks:
            like = count
            for row in range(self.plan.row_slices):
                slices.append(self._slice(block, row))
                likes.append(like)
                begins.append(count)
                count += len(slices[-1].tokens)
        rows = np.concatenate([one.rows for one in slices])
        rows[:, planner.LIKE] += np.repeat(likes, [len(one.rows) for one in slices])
        owners = np.concatenate([one.owners for one in slices])
        owners += np.repeat(begins, [len(one.owners) for one in slices])
        table = table_of(self.builder.shared)
        all_ops, refs = table.tables()
        ops = all_ops[np.concatenate([one.ops for one in slices])]
        most = int((ops[:, lives.O_READS_END] - ops[:, lives.O_READS]).sum())
        children, backs = np.empty((most, planner.LINK), np.int64), np.empty(most, np.int64)
        writers = np.full((table.values, planner.LINK), planner.NONE, np.int64)
        links = call(
            "link", ops, refs, owners, durations_of(self.cost, table, ops[:, lives.O_SIGNATURE]),
            writers,
            np.empty((most, planner.LINK + 1), np.int64), rows, children, backs,
            -1 if self.backward else 1,
        )  # fmt: skip
        tokens = tuple(token for one in slices for token in one.tokens)
        return Graph(tokens, rows, children[:links], backs[:links], self.holds)

    def _slice(self, block: str, row: int) -> _Slice:
        """Return the parts that all plans with the same cut of a slice share, made once."""
        builder, plan = self.builder, self.plan
        merges = plan.merge_wgrad and self.backward
        key = (
            _Slice, block, row, self.backward, row == self.last_slice, *builder.cut(row),
            pieces(plan, block, "proj"), pieces(plan, block, "_dgrad"),
            *(builder.cut(ALL_SLICES) if merges else ()),
        )  # fmt: skip
        found = builder.shared.get(key)
        if found is None:
            found = builder.shared[key] = self._made(block, row, merges=merges)
        made: _Slice = found
        return made

    def _made(self, block: str, row: int, *, merges: bool) -> _Slice:
        fragments = FORWARD_FRAGMENTS
        if self.backward:
            work = self.builder.shapes.workload
            fragments = backward_fragments(work.recompute, work.modules)
        tokens, rows, ops, owners = list[Token](), list[tuple[int, ...]](), list[int](), list[int]()
        for like, fragment in enumerate(slice_tokens(self.plan, block, fragments[block], row)):
            token, is_wgrad = fragment, fragment.is_wgrad
            if merges and is_wgrad:
                if row:
                    continue
                token = token._replace(slice=ALL_SLICES)
            urgent = self.gathers and token.plain.fragment in SHORT
            made = self.builder.templates(token)
            ops += made.rows.tolist()
            owners += [len(tokens)] * len(made)
            tokens.append(token)
            rows.append((0, 0, is_wgrad, urgent, token.slice, self._shift(token), like, 0, 0, 0, 0))
        made_rows = np.array(rows, np.int64).reshape(-1, planner.COLUMNS)
        return _Slice(tuple(tokens), made_rows, np.array(ops, np.int64), np.array(owners, np.int64))

    def _shift(self, token: Token) -> int:
        """Return by how many layers a fragment's group is later than its layer.

        The last fragments belong to the next layer's group. Where slices gather their tokens, those
        of all slices but the last one stay in their layer's group, with the next layer's first
        gathers: so a slice's gather is in flight while the last slice computes. What those need is
        recomputed before them.
        """
        place = token.block, token.fragment
        ahead = self.gathers and (
            token.is_again or (token.slice != self.last_slice and place in LAST | FIRST)
        )
        return (place in LAST) - ahead


def plan_issue_order(graph: Graph) -> IssueOrder:
    """Return the chosen group's issue order. A wgrad may be issued a group late, and not the same
    ones are late in each group: a wgrad that the group issues twice stays at its first place, one
    that it does not issue comes last."""
    chosen: dict[int, Token] = {}
    issued = issue_layers(graph, find_paths(graph), CHOSEN)
    for _, layer, index in issued[issued[:, planner.GROUP] == CHOSEN].tolist():
        if index not in chosen:
            token = graph.tokens[index]
            chosen[index] = token if layer == CHOSEN else token.shifted(layer - CHOSEN)
    for index, token in enumerate(graph.tokens):
        chosen.setdefault(index, token)
    return IssueOrder(tokens=tuple(chosen.values()))


def find_paths(graph: Graph) -> NDArray[np.int64]:
    """Return the longest remaining path of each node (ns), numbered layer × fragments + fragment.

    Every slice counts with the durations of the slowest one, so that uneven slices stay in step.
    """
    count = len(graph.tokens)
    paths = np.zeros(DEPTH * count, np.int64)
    scratch = np.empty((4, count), np.int64)
    ordered = call("find_paths", graph.rows, graph.children, graph.backs, DEPTH, paths, scratch)
    assert ordered == count, "a layer's fragments form no cycle"
    return paths


def issue_layers(
    graph: Graph, paths: NDArray[np.int64], last_group: int = DEPTH + 1
) -> NDArray[np.int64]:
    """Return [group in progress, layer, fragment] of the nodes of DEPTH equal layers, in issue
    order, up to the end of ``last_group``."""
    nodes = DEPTH * len(graph.tokens)
    state = np.zeros(planner.S_SIZE, np.int64)
    state[planner.HOLDS], state[planner.DEPTH] = graph.holds, DEPTH
    state[planner.REDUCES] = graph.rows[:, planner.COMM].any()
    missing, ready_at = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    lists, issued = np.empty((4, nodes), np.int64), np.empty((nodes, 3), np.int64)
    done = call(
        "issue_layers", graph.rows, graph.children, graph.backs, state, paths, missing, ready_at,
        lists, issued, last_group,
    )  # fmt: skip
    return issued[:done]


def order_of(case: Case, plan: SlicePlan) -> LayerOrder:
    """Return the explicit order of a plan: the fixed one of its strategy, or the greedy one."""
    if plan.strategy == "domino" and plan.order == "greedy":
        return plan_order(case.shapes(plan), case.cost)
    return fixed_order(plan, case.workload.recompute, case.workload.modules)
