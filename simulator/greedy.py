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

import heapq
from dataclasses import dataclass
from typing import Final

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
from simulator.ops import Signature
from simulator.schedule import COMPUTE
from simulator.shapes import Shapes

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
    for group, layer, index in _ListScheduler(graph).issue_all():
        if group == CHOSEN and index not in chosen:
            chosen[index] = graph.tokens[index]._replace(offset=layer - CHOSEN)
    for index, token in enumerate(graph.tokens):
        chosen.setdefault(index, token)
    return IssueOrder(tokens=tuple(chosen.values()))


class _ListScheduler:
    """List scheduling of DEPTH equal layers; nodes are numbered layer × fragments + fragment."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.depth = depth = DEPTH
        self.count = len(graph.tokens)
        self.reduces = any(graph.comm_ns)
        self.paths = _paths(graph, depth)
        self.shifts = _shifts(graph)
        self.urgent = [
            graph.gathers and token.fragment.removesuffix(AGAIN) in SHORT for token in graph.tokens
        ]
        self.group = -2
        self.unissued = 0
        self.upcoming: dict[int, list[int]] = {}  # nodes of later groups
        self.missing = [0] * (depth * self.count)
        self.ready_at = [0] * (depth * self.count)
        self.waiting: list[tuple[int, int]] = []  # (ready at, node): parents issued, not yet ready
        self.ready: list[tuple[int, int]] = []  # (-path, node)
        self.wgrads: list[int] = []  # ready ones; they are few
        self.now = 0
        self.comm_free = 0
        self.issued: list[tuple[int, int, int]] = []

    def issue_all(self) -> list[tuple[int, int, int]]:
        """Return (group in progress, layer, fragment) of every node, in issue order."""
        for layer in range(self.depth):
            for index, parents in enumerate(self.graph.parents):
                node = layer * self.count + index
                self.missing[node] = sum(layer - back >= 0 for back, _, _ in parents)
                if not self.missing[node]:
                    self._parents_issued(node)
        self._next_group()
        last = -1
        while len(self.issued) < self.depth * self.count:
            last = self._pick(last)
            self._issue(last)
        return self.issued

    def _group_of(self, node: int) -> int:
        return node // self.count + self.shifts[node % self.count]

    def _next_group(self) -> None:
        self.group += 1
        self.unissued = sum(
            0 <= self.group - shift < self.depth and not wgrad
            for shift, wgrad in zip(self.shifts, self.graph.is_wgrad, strict=True)
        )
        for node in self.upcoming.pop(self.group, []):
            heapq.heappush(self.waiting, (self.ready_at[node], node))
        if not self.unissued and self.group <= self.depth:
            self._next_group()

    def _parents_issued(self, node: int) -> None:
        if self.graph.is_wgrad[node % self.count]:
            self.wgrads.append(node)
        elif self._group_of(node) > self.group:
            self.upcoming.setdefault(self._group_of(node), []).append(node)
        else:
            heapq.heappush(self.waiting, (self.ready_at[node], node))

    def _pick(self, last: int) -> int:
        self._wake()
        chosen = self._urgent()
        if chosen < 0:
            chosen = self._continue_chunk(last)
        if chosen < 0 and self.ready:
            chosen = self.ready[0][1]
        earlier = self._earlier_wgrad(chosen)
        if earlier >= 0:
            return earlier
        if chosen >= 0:
            self.ready = [entry for entry in self.ready if entry[1] != chosen]
            heapq.heapify(self.ready)
            return chosen
        filler = self._filler()
        if filler >= 0:
            return filler
        waiting = [node for _, node in self.waiting[:1]] + self.wgrads
        self.now = min(self.ready_at[node] for node in waiting)
        return self._pick(last)

    def _wake(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.now:
            _, node = heapq.heappop(self.waiting)
            heapq.heappush(self.ready, (-self.paths[node], node))

    def _urgent(self) -> int:
        """Return a ready fragment that soon launches a gather, or −1."""
        short = [entry for entry in self.ready if self.urgent[entry[1] % self.count]]
        return min(short)[1] if short else -1

    def _continue_chunk(self, last: int) -> int:
        """Return the next ready fragment of the chunk issued last, or −1; wgrads are of none."""
        if last < 0 or self.graph.is_wgrad[last % self.count]:
            return -1
        token = self.graph.tokens[last % self.count]
        same_slice = [
            entry
            for entry in self.ready
            if self.graph.tokens[entry[1] % self.count].slice == token.slice
        ]
        return min(same_slice)[1] if same_slice else -1

    def _earlier_wgrad(self, chosen: int) -> int:
        """Return a wgrad that must be issued before the layer of ``chosen`` begins, or one that
        passes the time while the collective of ``chosen`` could not start; or −1."""
        if chosen < 0 or not self.wgrads:
            return -1
        compute_ns, comm_ns = (
            spent[chosen % self.count] for spent in (self.graph.compute_ns, self.graph.comm_ns)
        )
        oldest = min(self.wgrads)
        late = oldest // self.count < self._group_of(chosen) - 1
        if compute_ns and (late or not self.reduces):  # without ops it begins no layer
            return self._take_wgrad(oldest)
        busy = self.comm_free > self.now + compute_ns
        return self._filler() if self.graph.holds and comm_ns and busy else -1

    def _filler(self) -> int:
        """Return a ready wgrad of the newest layer, or −1."""
        ready = [node for node in self.wgrads if self.ready_at[node] <= self.now]
        newest = min(ready, key=lambda n: (-(n // self.count), n), default=-1)
        return -1 if newest < 0 else self._take_wgrad(newest)

    def _take_wgrad(self, node: int) -> int:
        self.wgrads.remove(node)
        return node

    def _issue(self, node: int) -> None:
        layer, index = divmod(node, self.count)
        self.issued.append((self.group, layer, index))
        self.now = max(self.now, self.ready_at[node]) + self.graph.compute_ns[index]
        reduced_at = self.now
        if self.graph.comm_ns[index]:
            self.comm_free = max(self.comm_free, self.now) + self.graph.comm_ns[index]
            reduced_at = self.comm_free
        for ahead, child, reduced in self.graph.children[index]:
            if layer + ahead < self.depth:
                target = (layer + ahead) * self.count + child
                at = reduced_at if reduced else self.now
                self.ready_at[target] = max(self.ready_at[target], at)
                self.missing[target] -= 1
                if not self.missing[target]:
                    self._parents_issued(target)
        if not self.graph.is_wgrad[index]:
            self.unissued -= 1
            if not self.unissued and self.group <= self.depth:
                self._next_group()


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


def _paths(graph: _Graph, depth: int) -> list[int]:
    """Return each node's longest remaining path in ns, with all-reduces, without wgrads.

    Every slice counts with the durations of the slowest one, so that uneven slices stay in step.
    """
    count = len(graph.tokens)
    compute_ns = _slowest(graph.tokens, graph.compute_ns)
    comm_ns = _slowest(graph.tokens, graph.comm_ns)
    order = _topological(graph)
    paths = [0] * (depth * count)
    for layer in range(depth - 1, -1, -1):
        for index in reversed(order):
            if graph.is_wgrad[index]:
                continue
            longest = 0
            for ahead, child, reduced in graph.children[index]:
                if layer + ahead < depth and not graph.is_wgrad[child]:
                    tail = paths[(layer + ahead) * count + child]
                    longest = max(longest, tail + comm_ns[index] * reduced)
            paths[layer * count + index] = longest + compute_ns[index]
    return paths


def _slowest(tokens: tuple[Token, ...], durations: tuple[int, ...]) -> list[int]:
    """Return each fragment's longest duration over the slices."""
    longest: dict[Token, int] = {}
    for token, duration in zip(tokens, durations, strict=True):
        key = token._replace(slice=0)
        longest[key] = max(longest.get(key, 0), duration)
    return [longest[token._replace(slice=0)] for token in tokens]


def _topological(graph: _Graph) -> list[int]:
    """Return the fragments of one layer, parents first."""
    missing = [sum(back == 0 for back, _, _ in parents) for parents in graph.parents]
    order = [index for index, count in enumerate(missing) if not count]
    for index in order:
        for ahead, child, _ in graph.children[index]:
            if ahead == 0:
                missing[child] -= 1
                if not missing[child]:
                    order.append(child)
    assert len(order) == len(graph.tokens), "a layer's fragments form no cycle"
    return order
