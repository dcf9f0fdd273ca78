"""The builder: (model, workload, cluster, plan, order) -> Schedule, without durations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from simulator.buckets import (
    BUCKET,
    GATHERS,
    awaiting,
    bucket,
    gather,
    layers_per_bucket,
    with_buckets,
    with_gathers,
)
from simulator.edges import EMBED_GRADS, EMBEDS, HEAD_GRADS, HEADS, Edges
from simulator.errors import ScheduleError
from simulator.fragments import Fragments, gradient_name
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
from simulator.optimizer_step import begin_step, optimizer_step
from simulator.overlap import EP_OVERLAP
from simulator.paired import paired
from simulator.plan import SlicePlan, check_plan_fits
from simulator.schedule import OpTemplate, Ref, Repeat, Schedule, Segment, check_order
from simulator.schedules import fixed_order
from simulator.shapes import Held, Shapes
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.stack import LayerKind, joined, own_kind, stack
from simulator.templates import Templates, shared_by

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
    check_plan_fits(plan, model, workload, cluster)
    shapes = Shapes(
        model=model, workload=workload, cluster=cluster, plan=plan, fp8_any_layout=fp8_any_layout
    )
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
    for issue_order in (order.forward, order.backward):
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


class Ends(NamedTuple):
    """What a pass plays in the place of tokens of the layer before its first one, and of the layer
    after its last one; None where nothing is played."""

    before: Callable[[Token], list[OpTemplate]] | None
    behind: Callable[[Token], list[OpTemplate]] | None

    def of(self, *, before: bool, behind: bool) -> Ends:
        """Return the ends that there are."""
        return Ends(self.before if before else None, self.behind if behind else None)


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
        self.value_bytes: dict[str, int] = {}
        self._templates = Templates(shapes=shapes, value_bytes=self.value_bytes)

    def schedule(self) -> Schedule:
        """Return the schedule of one optimizer step."""
        micros = self.shapes.workload.grad_accumulation
        pairs = self.shapes.plan.strategy == EP_OVERLAP
        parts = self._paired_parts(micros) if pairs else self._parts(micros)
        return Schedule(
            parts=parts, value_bytes=self.value_bytes, micros=micros,
            launch_order=self.shapes.launch_order,
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
        return [
            *self.forward(fragments, first=first),
            *self.backward(fragments, last=last),
        ]

    def fragments(self, *, first: bool) -> Fragments:
        """Return the builder of a micro-batch's ops; ``first``: of the iteration."""
        return Fragments(
            shapes=self.shapes, chains=self.chains, value_bytes=self.value_bytes,
            accumulate_first=not first or self.shapes.workload.implementation.zero_grads,
            shared=self._templates.shared,
        )  # fmt: skip

    def forward(self, fragments: Fragments, *, first: bool) -> list[Segment]:
        """Return the segments of a micro-batch's forward pass, up to the loss."""
        order, shapes = self.order.forward, self.shapes
        gathers = self._gathers_early and (first or shapes.shards_parameters)
        edges = Edges(templates=fragments, gathers=gathers)
        t = self._templates
        ahead = t.once(("begin_step", *t.rank), lambda: begin_step(t)) if first else []
        ahead = [*ahead, *(edges.parameters() if gathers and shapes.embedding else ())]
        ends = Ends(
            before=lambda token: fragments.moved(edges.instead(EMBEDS, token), token.offset + 1),
            behind=lambda token: fragments.moved(edges.instead(HEADS, token), token.offset),
        )
        segments = _segment(ahead)
        runs = joined(stack(shapes.model, shapes.workload))
        for kind, layers in runs:
            own = len(runs) == 1 and kind[1:] == own_kind(shapes.model, shapes.workload)[1:]
            made = fragments if own else self._of(fragments, kind)
            segments += self._pass(
                made, self._gathering(made, order) if gathers else order, layers, mirror=-1,
                ends=ends.of(
                    before=shapes.embedding and not layers.start,
                    behind=shapes.head and layers.stop == self.layers,
                ),
            )  # fmt: skip
        return segments + _segment(edges.loss_sums(), self.layers)

    def _gathering(self, fragments: Fragments, order: IssueOrder) -> IssueOrder:
        whole = math.ceil(self.layers / order.stride) * order.stride
        each = layers_per_bucket(fragments.shapes, order.stride)
        return with_gathers(order, min(whole, each), "gather")

    def backward(self, fragments: Fragments, *, last: bool) -> list[Segment]:
        """Return the segments of a micro-batch's backward pass, from the loss, run by run of the
        stack. ``last``: of the iteration."""
        edges, segments = Edges(templates=fragments), []
        ends = Ends(
            before=lambda token: fragments.moved(edges.instead(HEAD_GRADS, token), token.offset),
            behind=lambda token: fragments.moved(
                edges.instead(EMBED_GRADS, token), token.offset - 1
            ),
        )
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
                ends=ends.of(
                    before=self.shapes.head and not positions.start,
                    behind=self.shapes.embedding and positions.stop == self.layers,
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
        self, fragments: Fragments, order: IssueOrder, positions: range, *, mirror: int, ends: Ends
    ) -> list[Segment]:
        """Return the segments of an order along ``positions`` of a pass: whole repetitions become a
        loop. ``ends`` makes the ops one position before and after them."""
        stride, offsets = order.stride, [t.offset for t in order.tokens]
        gathers = any(token.fragment in GATHERS for token in order.tokens)
        if gathers:
            offsets.append(2 * stride - 1)  # the last layer that a whole repetition gathers
        low, high, count = min(offsets), max(offsets), len(positions)
        first = -((high + (ends.before is not None)) // stride)
        last = (count - 1 - low + (ends.behind is not None)) // stride
        whole = range(-(low // stride), (count - 1 - high) // stride + 1)
        plain = [self._inside(fragments, token, stride, gathers=gathers) for token in order.tokens]
        segments = []
        repetition = first
        while repetition <= last:
            times = len(whole) if whole and repetition == whole.start else 1
            start = positions.start + repetition * stride
            inside = self._repetition(fragments, plain, order, start, positions, ends)
            if inside:
                segments.append(
                    Segment(
                        templates=inside, count=times, first=start, stride=stride,
                        mirror=mirror,
                    )
                )  # fmt: skip
            repetition += times
        return segments

    def _inside(
        self, fragments: Fragments, token: Token, stride: int, *, gathers: bool
    ) -> list[OpTemplate]:
        """Return the ops of a token of a layer; of gathers none, which depend on the layer.
        ``gathers``: the order has any."""
        if token.fragment in GATHERS:
            return []
        if token.fragment == BUCKET:
            return self._bucket(fragments, token, stride)
        if gathers:
            return self._awaiting(fragments, token, stride)
        return fragments.templates(token)

    def _repetition(
        self, fragments: Fragments, plain: list[list[OpTemplate]], order: IssueOrder, start: int,
        positions: range, ends: Ends,
    ) -> tuple[OpTemplate, ...]:  # fmt: skip
        """Return the ops of the repetition that begins with layer ``start`` of the pass, with those
        of ``ends`` for the layers next to ``positions``, and none for layers beyond. ``plain``: of
        each token."""
        at_ends = {positions.start - 1: ends.before, positions.stop: ends.behind}
        ops: list[OpTemplate] = []
        ahead: list[OpTemplate] = []  # gathers, which embedding and head do not need
        for token, inside in zip(order.tokens, plain, strict=True):
            layer = start + token.offset
            if layer not in positions:
                edge = at_ends.get(layer)
                ops += edge(token) if edge else []
            elif token.fragment in GATHERS:
                count = min(order.stride, positions.stop - layer)
                ahead += self._gather(fragments, token, count)
            else:
                ops += ahead
                ops += inside
                ahead = []
        return (*ops, *ahead)

    def _gather(self, t: Templates, token: Token, layers: int) -> list[OpTemplate]:
        return t.once(("gather", token, layers, *t.rank), lambda: gather(t, token, layers))

    def _bucket(self, t: Templates, token: Token, stride: int) -> list[OpTemplate]:
        gradients = self._final_gradients
        key = "bucket", token, stride, gradients, *t.rank
        return t.once(key, lambda: bucket(t, token, stride, gradients))

    def _awaiting(self, fragments: Fragments, token: Token, stride: int) -> list[OpTemplate]:
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
    def _final_gradients(self) -> tuple[str, ...]:
        followed = {before for before in self.chains.values() if before is not None}
        finals = (token for token in self.chains if token not in followed)
        return tuple(dict.fromkeys(gradient_name(token) for token in finals))

    def _step(self) -> list[OpTemplate]:
        """Return the optimizer's step."""
        early, stride = self._reduces_early, self.order.backward.stride
        names = self._final_gradients
        key = "step", stride if early else 0, names, *self._templates.rank
        return self._templates.once(key, lambda: self._made_step(names))

    def _made_step(self, names: tuple[str, ...]) -> list[OpTemplate]:
        shapes, held = self.shapes, Held(self.shapes.edge_parameters)
        reads: list[Ref] = []
        for kind, layers in reversed(stack(shapes.model, shapes.workload)):
            one, per_bucket = shapes.of(kind), 0
            if self._reduces_early:
                per_bucket = layers_per_bucket(one, self.order.backward.stride)
            left = len(layers) % per_bucket if per_bucket else len(layers)
            held += one.layer * left
            reads += [Ref(layer, name) for layer in layers[:left] for name in names]
            reads += [Ref(layer, "grad.dp") for layer in layers[left :: per_bucket or 1]]
        reads += [Ref(self.layers, "grad.head"), Ref(0, "grad.embed")]
        gathers = shapes.reduces and shapes.shards_optimizer and not self._gathers_early
        return optimizer_step(self._templates, held, tuple(reads), gathers=gathers)


def _segment(ops: list[OpTemplate], layer: int = 0) -> list[Segment]:
    """Return ``ops`` once, at ``layer``; no segment without ops."""
    return [Segment(templates=tuple(ops), first=layer)] if ops else []


def _micro_groups(micros: int) -> list[tuple[int, int]]:
    """Return (first number, count) of each group of equal micro-batches: first, middle, last."""
    middle = [(1, micros - 2)] if micros > 2 else []
    last = [(micros - 1, 1)] if micros > 1 else []
    return [(0, 1), *middle, *last]
