"""The builder: (model, workload, cluster, plan, order) -> Schedule, without durations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from simulator.edges import EMBED_GRADS, EMBEDS, HEAD_GRADS, HEADS, Edges, Places
from simulator.errors import ScheduleError
from simulator.fragments import Fragments, gradient_of
from simulator.issue_order import (
    FORWARD_FRAGMENTS,
    IssueOrder,
    LayerOrder,
    Token,
    backward_fragments,
    check_issue_order,
    dgrads_first,
    wgrad_chains,
    without_recomputation,
)
from simulator.op_table import Ops, table_of
from simulator.optimizer import (
    BUCKET,
    BUCKET_SUM,
    GATHERS,
    awaiting,
    begin_step,
    bucket,
    gather,
    layers_per_bucket,
    optimizer_step,
    with_buckets,
    with_gathers,
)
from simulator.overlap import EP_OVERLAP
from simulator.overlapped import paired
from simulator.plan import SlicePlan
from simulator.schedule import OpTemplate, Repeat, Schedule, Segment, check_order
from simulator.schedules import fixed_order
from simulator.shapes import Shapes, shapes_of
from simulator.sharding import Held, check_shardable
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.stack import LayerKind, joined, own_kind, stack
from simulator.templates import Templates, shared_by
from simulator.values import Ref, main_gradient

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Made = TypeVar("Made")
MAX_SPAN: Final = 4
"""By how many repetitions a stored order may move a token."""


def build_schedule(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    plan: SlicePlan,
    order: LayerOrder | None = None,
    *,
    fp8_any_layout: bool = False,
) -> Schedule:
    """Return the schedule of one optimizer step.

    ``order`` is the explicit order of the plan (a greedy plan needs one; others have their own).
    ``fp8_any_layout``: as the machine says.
    Raise InputError if the model does not shard, InfeasiblePlanError if the plan does not fit,
    ScheduleError if the order is not this plan's.
    """
    check_shardable(model, workload, cluster)
    shapes = shapes_of(model, workload, cluster, plan, fp8_any_layout=fp8_any_layout)
    chosen = order or _own_order(plan, workload)
    check_order_of(shapes, chosen)
    return Builder(shapes, chosen).schedule()


built_once = lru_cache(maxsize=16)(build_schedule)
"""Durations are no part of a schedule, so what-ifs and drawn machines play the same ones again."""


def check_order_of(shapes: Shapes, order: LayerOrder) -> None:
    """Raise ScheduleError unless each pass of ``order`` issues every fragment once per layer."""
    work = shapes.workload
    check_issue_order(order.forward, shapes.plan, FORWARD_FRAGMENTS)
    check_issue_order(order.backward, shapes.plan, backward_fragments(work.recompute, work.modules))


def check_layer_order(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan, order: LayerOrder
) -> None:
    """Raise ScheduleError unless ``order``, which comes from outside, is a legal one of ``plan``.

    A short stack is enough: an order relates only layers within its span. Where layers are computed
    again, both kinds are in it.
    """
    back = backward_fragments(workload.recompute, workload.modules)
    for issue_order, fragments in ((order.forward, FORWARD_FRAGMENTS), (order.backward, back)):
        check_issue_order(issue_order, plan, fragments)
        far = max((abs(token.offset) for token in issue_order.tokens), default=0)
        if far > MAX_SPAN * issue_order.stride:
            raise ScheduleError(
                f"The order has a token {far} layers away from its repetition; at most "
                f"{MAX_SPAN * issue_order.stride} is allowed. Plan it again."
            )
    layers = MAX_SPAN * max(order.forward.stride, order.backward.stride) + 2
    layers += model.first_k_dense_replace
    short = replace(model, num_hidden_layers=min(layers, model.num_hidden_layers))
    again = min(workload.recompute_layers, short.num_hidden_layers - 1)
    micros = 2 if plan.strategy == EP_OVERLAP else 1
    few = replace(workload, grad_accumulation=micros, recompute_layers=again)
    check_order(build_schedule(short, few, cluster, plan, order))


def _own_order(plan: SlicePlan, workload: Workload) -> LayerOrder:
    if plan.strategy == "domino" and plan.order == "greedy":
        raise ScheduleError(
            "A greedy plan needs its explicit order: plan it with simulator.greedy, or load it "
            "from the plan file."
        )
    return fixed_order(plan, workload.recompute, workload.modules)


class End(NamedTuple):
    """What a pass plays in the place of tokens of the layer before its first one, or after its last
    one. ``there``: whether it plays anything; ``later``: by how many layers its ops belong to a
    later layer than the tokens."""

    edges: Edges
    places: Places
    there: bool
    later: int = 0


class _Lines(NamedTuple):
    """Ops of an order's tokens, in its order. Each is in the repetitions that begin with layers
    ``first`` to ``last``. ``inside``: whether it is a layer's, not an edge's."""

    rows: Ints
    first: Ints
    last: Ints
    inside: Ints


class Builder:
    """Builder of micro-batches from the layers' issue orders and the edges.

    ``in_pipeline``: data-parallel collectives are the pipeline's, not those of a pass.
    """

    def __init__(self, shapes: Shapes, order: LayerOrder, *, in_pipeline: bool = False) -> None:
        self.shapes = shapes
        self.order = order
        self.in_pipeline = in_pipeline
        self.layers = shapes.model.stacked_layers
        self.chains = wgrad_chains(order.backward)
        self._templates = Templates(shapes=shapes)

    def schedule(self) -> Schedule:
        """Return the schedule of one optimizer step."""
        micros = self.shapes.workload.grad_accumulation
        pairs = self.shapes.plan.strategy == EP_OVERLAP
        parts = self._paired_parts(micros) if pairs else self._parts(micros)
        return Schedule(
            parts=parts, micros=micros, launch_order=self.shapes.launch_order,
            shared=self._templates.shared,
        )  # fmt: skip

    def _parts(self, micros: int) -> tuple[Repeat, ...]:
        """Return the micro-batches one after the other, then the step."""
        parts = []
        for first_micro, count in _micro_groups(micros):
            last = first_micro + count == micros
            segments = self._micro(first=first_micro == 0, last=last)
            if last:
                segments += _segment(self._step())
            parts.append(Repeat(segments=tuple(segments), count=count, first_micro=first_micro))
        return tuple(parts)

    def _paired_parts(self, micros: int) -> tuple[Repeat, ...]:
        """Return each micro-batch's pass forward beside the one before going back, then the last
        one back, then the step."""
        ahead = self.forward(self.fragments(first=True), first=True)
        parts = [Repeat(segments=tuple(ahead))]
        for first_micro, count in _micro_groups(micros)[:-1]:
            pair = self._pair(first=first_micro == 0)
            parts.append(Repeat(segments=tuple(pair), count=count, first_micro=first_micro + 1))
        back = self.backward(self.fragments(first=False), last=True)
        last = (*back, *_segment(self._step()))
        return (*parts, Repeat(segments=last, first_micro=micros - 1))

    def _pair(self, *, first: bool) -> list[Segment]:
        """Return a later pass forward beside a pass back, which may be the first one."""
        ahead = self.forward(self.fragments(first=False), first=False)
        back = self.backward(self.fragments(first=first), last=False)
        return paired(
            ahead, back, (self.layers, self.layers), self._templates.shared,
            delays_wgrads=self.shapes.plan.wgrad == "deferred",
        )  # fmt: skip

    def _micro(self, *, first: bool, last: bool) -> list[Segment]:
        fragments = self.fragments(first=first)
        return [*self.forward(fragments, first=first), *self.backward(fragments, last=last)]

    def fragments(self, *, first: bool) -> Fragments:
        """Return the builder of a micro-batch's ops; ``first``: of the iteration."""
        return Fragments(
            shapes=self.shapes, chains=self.chains,
            accumulate_first=not first or self.shapes.workload.implementation.zero_grads,
            shared=self._templates.shared,
        )  # fmt: skip

    def forward(self, fragments: Fragments, *, first: bool) -> list[Segment]:
        """Return the segments of a micro-batch's forward pass, up to the loss."""
        key = self.order.forward, first, self.shapes.pieces(backward=False)
        made = self.once(fragments, key, lambda: self._ahead(fragments, first=first), begins=first)
        return list(made)

    def once(
        self, fragments: Fragments, key: tuple[object, ...], make: Callable[[], Made], *,
        begins: bool = False,
    ) -> Made:  # fmt: skip
        """Return what is made of a pass, once for all plans and ranks that share it. In a pipeline
        it does not depend on replicas and stages, unless it ``begins`` the iteration with what a
        rank does once."""
        t, s = self._templates, self.shapes
        rank = t.rank
        if self.in_pipeline and not begins:
            rank = s.model, s.workload.recompute_layers, s.embedding, s.head
        told = s.plan.tp_comm_overlap
        whole = Builder, *key, told, fragments.accumulate_first, self.in_pipeline, *rank
        found: Made | None = t.shared.get(whole)
        if found is None:
            found = t.shared[whole] = make()
        return found

    def _ahead(self, fragments: Fragments, *, first: bool) -> list[Segment]:
        order, shapes = self.order.forward, self.shapes
        gathers = self._gathers_early and (first or shapes.shards_parameters)
        edges = Edges(templates=fragments, gathers=gathers)
        t = self._templates
        ahead: list[OpTemplate] = []
        if first:
            ahead += t.once(("begin_step", *t.rank), lambda: begin_step(t))
        if gathers and shapes.embedding:
            ahead += edges.parameters()
        segments = _segment(ahead)
        runs = joined(stack(shapes.model, shapes.workload))
        for kind, layers in runs:
            own = len(runs) == 1 and kind[1:] == own_kind(shapes.model, shapes.workload)[1:]
            made = fragments if own else self._of(fragments, kind)
            segments += self._pass(
                made, self._gathering(made, order) if gathers else order, layers, mirror=-1,
                before=End(edges, EMBEDS, shapes.embedding and not layers.start, 1),
                behind=End(edges, HEADS, shapes.head and layers.stop == self.layers),
            )  # fmt: skip
        return segments + _segment(edges.loss_sums(), self.layers)

    def _gathering(self, fragments: Fragments, order: IssueOrder) -> IssueOrder:
        whole = math.ceil(self.layers / order.stride) * order.stride
        each = layers_per_bucket(fragments.shapes, order.stride)
        return with_gathers(order, min(whole, each), "gather")

    def backward(self, fragments: Fragments, *, last: bool) -> list[Segment]:
        """Return the segments of a micro-batch's backward pass, from the loss. ``last``: of the
        iteration."""
        key = self.order.backward, last, self.shapes.pieces(backward=True)
        return list(self.once(fragments, key, lambda: self._back(fragments, last=last)))

    def _back(self, fragments: Fragments, *, last: bool) -> list[Segment]:
        """Return them run by run of the stack."""
        edges, segments = Edges(templates=fragments), list[Segment]()
        for kind, layers in reversed(stack(self.shapes.model, self.shapes.workload)):
            order, made = self.order.backward, self._of(fragments, kind)
            if kind.recompute == "none":
                order = without_recomputation(order)
            if self.shapes.model.num_experts:
                order = dgrads_first(order)
            if self._reduces_early and (last or self.shapes.shards_parameters):
                order = with_buckets(order, layers_per_bucket(made.shapes, order.stride))
            if self._gathers_early and self.shapes.shards_parameters:
                order = with_gathers(order, order.stride, "gather_bwd")
            made = replace(made, chains=wgrad_chains(order))
            positions = range(self.layers - layers.stop, self.layers - layers.start)
            segments += self._pass(
                made, order, positions, mirror=self.layers - 1,
                before=End(edges, HEAD_GRADS, self.shapes.head and not positions.start),
                behind=End(
                    edges, EMBED_GRADS,
                    self.shapes.embedding and positions.stop == self.layers, -1,
                ),
            )  # fmt: skip
        return segments + _segment(edges.dense_embedding_grad())

    def _of(self, fragments: Fragments, kind: LayerKind) -> Fragments:
        """Return ``fragments`` of layers of one kind."""
        shapes = self.shapes.of(kind)
        if shapes is self.shapes:
            return fragments
        return replace(fragments, shapes=shapes, shared=shared_by(shapes))

    def _pass(
        self, fragments: Fragments, order: IssueOrder, positions: range, *, mirror: int,
        before: End, behind: End,
    ) -> list[Segment]:  # fmt: skip
        """Return the segments of an order along ``positions`` of a pass: whole repetitions become a
        loop. ``before`` and ``behind`` make the ops one position before and after them."""
        stride, offsets = order.stride, [t.offset for t in order.tokens]
        gather = next((token for token in order.tokens if token.fragment in GATHERS), None)
        if gather:
            offsets.append(2 * stride - 1)  # the last layer that a whole repetition gathers
        low, high, count = min(offsets), max(offsets), len(positions)
        first = -((high + before.there) // stride)
        last = (count - 1 - low + behind.there) // stride
        whole = range(-(low // stride), (count - 1 - high) // stride + 1)
        lines = self._lines(fragments, order, positions, before, behind)
        table, segments = table_of(self._templates.shared), list[Segment]()
        repetition = first
        while repetition <= last:
            times = len(whole) if whole and repetition == whole.start else 1
            start = positions.start + repetition * stride
            there = (lines.first <= start) & (start <= lines.last)
            rows = lines.rows[there]
            if gather and start + gather.offset in positions:
                layers = min(stride, positions.stop - start - gather.offset)
                gathered = table.ops(self._gather(fragments, gather, layers)).rows
                # Embedding and head do not need them.
                begin = int(np.append(lines.inside[there], 1).argmax())
                rows = np.concatenate((rows[:begin], gathered, rows[begin:]))
            if len(rows):
                segments.append(Segment(
                    templates=Ops(table, rows), count=times, first=start, stride=stride,
                    mirror=mirror,
                ))  # fmt: skip
            repetition += times
        return segments

    def _lines(
        self, fragments: Fragments, order: IssueOrder, positions: range, before: End, behind: End
    ) -> _Lines:
        """Return the ops of tokens in layers of ``positions`` and in the places next to them; of
        gathers none, which depend on the layer."""
        table = table_of(self._templates.shared)
        made = [table.ops(ops) for ops in self._inside(fragments, order)]
        first = [positions.start - token.offset for token in order.tokens]
        last = [begin + len(positions) - 1 for begin in first]
        inside = [True] * len(made)
        for number, begin, ops in self._edges(order, positions, before, behind):
            made.insert(number, ops)
            first.insert(number, begin)
            last.insert(number, begin)
            inside.insert(number, False)
        columns = np.array((first, last, inside), np.int64)
        spread = np.repeat(columns, [len(ops.rows) for ops in made], axis=1)
        return _Lines(np.concatenate([ops.rows for ops in made]), *spread)

    def _inside(self, fragments: Fragments, order: IssueOrder) -> list[Ops]:
        """Return the ops of each token in a layer."""
        gathers = any(token.fragment in GATHERS for token in order.tokens)
        if not gathers and not any(token.fragment == BUCKET for token in order.tokens):
            return fragments.listed(order.tokens)
        return [
            self._apart(fragments, token, order.stride, gathers=gathers) for token in order.tokens
        ]

    def _apart(self, t: Fragments, token: Token, stride: int, *, gathers: bool) -> Ops:
        """Return the ops of a token in an order with collectives of replicas."""
        if token.fragment in GATHERS:
            return table_of(t.shared).ops(())
        if token.fragment == BUCKET:
            return self._bucket(t, token, stride)
        return self._awaiting(t, token, stride) if gathers else t.templates(token)

    def _edges(
        self, order: IssueOrder, positions: range, before: End, behind: End
    ) -> list[tuple[int, int, Ops]]:
        """Return what an order plays in the layers next to ``positions``: the number of a token,
        the layer with which its repetition begins, and the ops in its place; the last number
        first."""
        found: list[tuple[int, int, Ops]] = []
        for layer, end in ((positions.start - 1, before), (positions.stop, behind)):
            if not end.there:
                continue
            begins = sorted(
                (layer - token.offset, number)
                for number, token in enumerate(order.tokens)
                if token[:2] in end.places
                and (layer - token.offset - positions.start) % order.stride == 0
            )
            tokens = tuple(order.tokens[number] for _, number in begins)
            made = end.edges.line(end.places, tokens, end.later)
            found += (
                (number, begin, ops)
                for (begin, number), ops in zip(begins, made, strict=True)
                if ops
            )
        return sorted(found, key=lambda one: -one[0])

    def _gather(self, t: Templates, token: Token, layers: int) -> Ops:
        return t.once(("gather", token, layers, *t.rank), lambda: gather(t, token, layers))

    def _bucket(self, t: Templates, token: Token, stride: int) -> Ops:
        gradients = self._final_gradients
        key = "bucket", token, stride, gradients, *t.rank
        return t.once(key, lambda: bucket(t, token, stride, gradients))

    def _awaiting(self, fragments: Fragments, token: Token, stride: int) -> Ops:
        templates = fragments.templates(token)
        key = "awaiting", token, stride, id(templates)
        return fragments.once(key, lambda: awaiting(token, stride, templates))

    # Data-parallel gradients --------------------------------------------------------------------

    @property
    def _reduces_early(self) -> bool:
        """Whether backward reduces the gradients of its layers, in buckets."""
        overlaps = self.shapes.workload.overlap_grad_reduce or self.shapes.shards_parameters
        stride = self.order.backward.stride
        each = min(layers_per_bucket(one, stride) for _, one in self.shapes.kinds)
        enough = each <= self.layers
        return self.shapes.reduces and overlaps and enough and not self.in_pipeline

    @property
    def _gathers_early(self) -> bool:
        """Whether passes gather the parameters of their layers."""
        overlaps = self.shapes.workload.overlap_param_gather or self.shapes.shards_parameters
        sharded = self.shapes.reduces and self.shapes.shards_optimizer
        return sharded and overlaps and not self.in_pipeline

    @cached_property
    def _final_gradients(self) -> tuple[Ref, ...]:
        followed = {before for before in self.chains.values() if before is not None}
        finals = (token for token in self.chains if token not in followed)
        return tuple(dict.fromkeys(gradient_of(token) for token in finals))

    def _step(self) -> Ops:
        """Return the optimizer's step."""
        early, stride = self._reduces_early, self.order.backward.stride
        finals = self._final_gradients
        key = "step", stride if early else 0, finals, *self._templates.rank
        return self._templates.once(key, lambda: self._made_step(finals))

    def _made_step(self, finals: tuple[Ref, ...]) -> list[OpTemplate]:
        shapes, held = self.shapes, Held(self.shapes.edge_parameters)
        reads: list[Ref] = []
        for kind, layers in reversed(stack(shapes.model, shapes.workload)):
            one, per_bucket = shapes.of(kind), 0
            if self._reduces_early:
                per_bucket = layers_per_bucket(one, self.order.backward.stride)
            left = len(layers) % per_bucket if per_bucket else len(layers)
            held += one.layer * left
            reads += [one.at(layer) for layer in layers[:left] for one in finals]
            reads += [BUCKET_SUM.at(layer) for layer in layers[left :: per_bucket or 1]]
        reads += [main_gradient("head").at(self.layers), main_gradient("embed")]
        gathers = shapes.reduces and shapes.shards_optimizer and not self._gathers_early
        return optimizer_step(self._templates, held, tuple(reads), gathers=gathers)


def _segment(ops: Sequence[OpTemplate], layer: int = 0) -> list[Segment]:
    """Return ``ops`` once, at ``layer``; no segment without ops."""
    return [Segment(templates=ops, first=layer)] if ops else []


def _micro_groups(micros: int) -> list[tuple[int, int]]:
    """Return (first number, count) of each group of equal micro-batches: first, middle, last."""
    middle = [(1, micros - 2)] if micros > 2 else []
    last = [(micros - 1, 1)] if micros > 1 else []
    return [(0, 1), *middle, *last]
