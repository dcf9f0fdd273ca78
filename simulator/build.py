"""The builder: (model, workload, cluster, plan, order) -> Schedule, without durations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from simulator.edges import Edges
from simulator.errors import ScheduleError
from simulator.fragments import Fragments, gradient_name
from simulator.issue_order import (
    BACKWARD_FRAGMENTS,
    FORWARD_FRAGMENTS,
    IssueOrder,
    LayerOrder,
    Token,
    check_issue_order,
    wgrad_chains,
)
from simulator.plan import SlicePlan, check_plan_fits
from simulator.schedule import DP, OpTemplate, Ref, Repeat, Schedule, Segment, check_order
from simulator.schedules import fixed_order
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload, check_shardable

DP_BUCKET_PARAMETERS: Final = 40_000_000
"""Fewest gradients of one data-parallel all-reduce (Megatron-LM's default bucket size)."""
BUCKET: Final = "bucket"
MAX_SPAN: Final = 4
"""By how many repetitions a stored order may move a token."""


def build_schedule(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    plan: SlicePlan,
    order: LayerOrder | None = None,
) -> Schedule:
    """Return the schedule of one optimizer step.

    ``order`` is the explicit order of the plan (a greedy plan needs one; others have their own).
    Raise InputError if the model does not shard, InfeasiblePlanError if the plan does not fit,
    ScheduleError if the order is not this plan's.
    """
    check_shardable(model, workload, cluster)
    check_plan_fits(plan, model, workload, cluster)
    shapes = Shapes(model=model, workload=workload, cluster=cluster, plan=plan)
    return _Builder(shapes, order or _own_order(plan)).schedule()


def check_layer_order(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan, order: LayerOrder
) -> None:
    """Raise ScheduleError unless ``order``, which comes from outside, is a legal one of ``plan``.

    A short stack is enough: an order relates only layers within its span.
    """
    for issue_order in (order.forward, order.backward):
        far = max((abs(token.offset) for token in issue_order.tokens), default=0)
        if far > MAX_SPAN * issue_order.stride:
            raise ScheduleError(
                f"The order has a token {far} layers away from its repetition; at most "
                f"{MAX_SPAN * issue_order.stride} is allowed. Plan it again."
            )
    layers = MAX_SPAN * max(order.forward.stride, order.backward.stride) + 2
    short = replace(model, num_hidden_layers=min(layers, model.num_hidden_layers))
    single = replace(workload, grad_accumulation=1)
    check_order(build_schedule(short, single, cluster, plan, order))


def _own_order(plan: SlicePlan) -> LayerOrder:
    if plan.strategy == "domino" and plan.order == "greedy":
        raise ScheduleError(
            "A greedy plan needs its explicit order: plan it with simulator.greedy, or load it "
            "from the plan file."
        )
    return fixed_order(plan)


class _Builder:
    """Builder of micro-batches from the layers' issue orders and the edges."""

    def __init__(self, shapes: Shapes, order: LayerOrder) -> None:
        check_issue_order(order.forward, shapes.plan, FORWARD_FRAGMENTS)
        check_issue_order(order.backward, shapes.plan, BACKWARD_FRAGMENTS)
        self.shapes = shapes
        self.order = order
        self.layers = shapes.model.num_hidden_layers
        self.chains = wgrad_chains(order.backward)
        self.value_bytes: dict[str, int] = {}

    def schedule(self) -> Schedule:
        micros = self.shapes.workload.grad_accumulation
        reduces = self.shapes.cluster.dp > 1 and self.shapes.plan.strategy != "no_comm"
        parts = []
        for first_micro, count in _micro_groups(micros):
            last = first_micro + count == micros
            segments = self._micro(first=first_micro == 0, buckets=last and reduces)
            if last:
                segments.append(self._step(reduces))
            parts.append(Repeat(segments=tuple(segments), count=count, first_micro=first_micro))
        return Schedule(parts=tuple(parts), value_bytes=self.value_bytes, micros=micros)

    def _micro(self, *, first: bool, buckets: bool) -> list[Segment]:
        backward = self.order.backward
        if buckets and self._layers_per_bucket() <= self.layers:
            backward = with_buckets(backward, self._layers_per_bucket())
        fragments = Fragments(
            shapes=self.shapes, chains=wgrad_chains(backward), accumulate_first=not first,
            value_bytes=self.value_bytes,
        )  # fmt: skip
        edges = Edges(fragments=fragments)
        return [
            Segment(templates=tuple(edges.embedding())),
            *self._pass(fragments, self.order.forward, mirror=-1),
            Segment(templates=tuple(edges.head()), first=self.layers),
            *self._pass(fragments, backward, mirror=self.layers - 1),
            Segment(templates=tuple(edges.embedding_grad())),
        ]

    def _pass(self, fragments: Fragments, order: IssueOrder, *, mirror: int) -> list[Segment]:
        """Return the segments of an order along the stack: whole repetitions become a loop."""
        stride, offsets = order.stride, [t.offset for t in order.tokens]
        low, high = min(offsets), max(offsets)
        first = -(high // stride)
        last = (self.layers - 1 - low) // stride
        whole = range(-(low // stride), (self.layers - 1 - high) // stride + 1)
        templates = [
            (token.offset, self._templates(fragments, token, order)) for token in order.tokens
        ]
        segments = []
        repetition = first
        while repetition <= last:
            count = len(whole) if whole and repetition == whole.start else 1
            start = repetition * stride
            inside = tuple(
                op for offset, ops in templates if 0 <= start + offset < self.layers for op in ops
            )
            if inside:
                segments.append(
                    Segment(
                        templates=inside, count=count, first=start, stride=stride, mirror=mirror
                    )
                )
            repetition += count
        return segments

    def _templates(self, fragments: Fragments, token: Token, order: IssueOrder) -> list[OpTemplate]:
        if token.fragment == BUCKET:
            return [self._bucket(fragments, token, order)]
        return fragments.templates(token)

    # Data-parallel gradients --------------------------------------------------------------------

    def _layers_per_bucket(self) -> int:
        """Return the layers, in whole backward repetitions, whose gradients fill one bucket."""
        needed = math.ceil(DP_BUCKET_PARAMETERS / self.shapes.layer_parameters)
        stride = self.order.backward.stride
        return math.ceil(needed / stride) * stride

    def _bucket(self, fragments: Fragments, token: Token, order: IssueOrder) -> OpTemplate:
        """Return the all-reduce of ``order.stride`` layers' gradients; it belongs to the last."""
        signature = self.shapes.dp_all_reduce(order.stride * self.shapes.layer_parameters)
        reads = tuple(
            Ref(layer, name) for layer in range(order.stride) for name in self._final_gradients()
        )
        template = fragments.op("dp.ar", -1, signature, reads, "grad.dp", 0, lane=DP)
        return template.shifted(token.offset)

    def _final_gradients(self) -> list[str]:
        followed = {before for before in self.chains.values() if before is not None}
        finals = (token for token in self.chains if token not in followed)
        return list(dict.fromkeys(gradient_name(token) for token in finals))

    def _step(self, reduces: bool) -> Segment:
        shapes = self.shapes
        edges = Edges(fragments=Fragments(shapes=shapes, value_bytes=self.value_bytes))
        per_bucket = self._layers_per_bucket() if reduces else 0
        rest = self.layers % per_bucket if reduces else self.layers
        names = self._final_gradients()
        reads = [Ref(layer, name) for layer in range(rest) for name in names]
        reads += [Ref(layer, "grad.dp") for layer in range(rest, self.layers, per_bucket or 1)]
        last = shapes.plan.row_slices - 1
        reads += [Ref(self.layers, f"grad.head.s{last}"), Ref(0, f"grad.embed.s{last}")]
        parameters = rest * shapes.layer_parameters + shapes.edge_parameters
        return Segment(templates=tuple(edges.step(parameters, tuple(reads))))


def _micro_groups(micros: int) -> list[tuple[int, int]]:
    """Return (first number, count) of each group of equal micro-batches: first, middle, last."""
    middle = [(1, micros - 2)] if micros > 2 else []
    last = [(micros - 1, 1)] if micros > 1 else []
    return [(0, 1), *middle, *last]


def with_buckets(order: IssueOrder, layers: int) -> IssueOrder:
    """Return ``order`` over ``layers`` layers, with one bucket token for their gradients.

    ``layers`` is a multiple of the order's stride. The bucket token stands right behind the last
    issued gradient of the layer that comes last in the pass.
    """
    copies = layers // order.stride
    tokens = [t.shifted(copy * order.stride) for copy in range(copies) for t in order.tokens]
    phase = layers - 1
    gradients = [
        (-token.offset, position)
        for position, token in enumerate(tokens)
        if token.offset % layers == phase and token.fragment.endswith(("_wgrad", "norm_bwd"))
    ]
    latest, position = max(gradients)
    tokens.insert(position + 1, Token("", BUCKET, -1, offset=-latest))
    return replace(order, tokens=tuple(tokens), stride=layers)
