"""A decoder stack that plays a plan: one autograd function, whose halves are the schedule's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, get_args

import torch
from torch import nn

from domino_tune.base.errors import RunError
from domino_tune.runtime import executor
from domino_tune.runtime.clock import NoClock
from domino_tune.runtime.executor import Passage, passage, recomputed
from domino_tune.runtime.huggingface.checks import check_anomaly, check_call
from domino_tune.runtime.huggingface.gradients import (
    Arriving,
    Gradients,
    Replicas,
    StackMeans,
    added_to,
    arriving_sum,
    buckets_of,
)
from domino_tune.runtime.huggingface.refusals import (
    NOT_SHARDED,
    Doubts,
    NotCopied,
    eager,
    first_order,
)
from domino_tune.runtime.huggingface.shard import Casts, ShardedStack
from domino_tune.runtime.lanes.lane import Handle, Lane, all_gather
from domino_tune.runtime.ops import Side, State, Training, sides_of
from domino_tune.runtime.parameters import Shards
from domino_tune.runtime.session import DTYPES
from domino_tune.store.plans import PlanFile
from simulator.build import build_schedule
from simulator.dtypes import Dtype
from simulator.errors import InfeasiblePlanError, InputError
from simulator.issue_order import LayerOrder
from simulator.plan import MEGATRON, SlicePlan, check_plan_fits
from simulator.schedule import TP, Op, is_weight
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload

# A plan for one shape of batch --------------------------------------------------------------------
# The ops of the stack's forward and backward, and what joins them.
#
# The schedule of a whole step has an embedding before the layers and a head after them. Here these
# are the user's, so only the ops of layers are played, and the sums of gradients that ranks hold in
# parts.


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The ops of a stack, and the names of its inputs and outputs, slice by slice.

    ``evaluate`` is forward without keeping what backward needs; ``sums``: ops that add up partial
    gradients, after backward.
    """

    shapes: Shapes
    forward: Passage
    evaluate: Passage
    backward: Passage
    sums: Passage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    output_grads: tuple[str, ...]
    input_grads: tuple[str, ...]
    recomputed: frozenset[str]
    sides: Mapping[str, Side]

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of all forward ops."""
        return frozenset(op.name for op in self.forward.ops)

    @cached_property
    def products(self) -> Counter[str]:
        """Return how many GEMMs of backward add to the gradient of each matrix."""
        roles = ((op.layer, op.role) for op in self.backward.ops if op.role.endswith("_wgrad"))
        return Counter(f"l{layer}.w.{role.removesuffix('_wgrad')}" for layer, role in roles)


def cut_of(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan,
    order: LayerOrder | None,
) -> Cut:  # fmt: skip
    """Return the plan's ops for micro-batches of ``workload``; those of the unsliced plan where the
    batch cannot be sliced so, as the last of an epoch or one to evaluate."""
    one = replace(cluster, dp=1, ranks_per_node=max(cluster.ranks_per_node, cluster.tp))
    try:
        check_plan_fits(plan, model, workload, one)
    except InfeasiblePlanError:
        shards = plan.sequence_parallel and workload.seq_length % cluster.tp == 0
        plan, order = replace(MEGATRON, sequence_parallel=shards), None
    shapes = Shapes(model=model, workload=workload, cluster=one, plan=plan)
    ops = tuple(build_schedule(model, workload, one, plan, order).ops())
    turn = next(i for i, op in enumerate(ops) if op.role == "loss.sum")
    forward, backward = (
        tuple(op for op in part if op.role.startswith(("attn.", "mlp.")))
        for part in (ops[:turn], ops[turn:])
    )
    slices = range(plan.row_slices)
    last = model.num_hidden_layers - 1
    outputs = _names(slices, forward, "mlp.residual", last, "writes")
    input_grads = _names(slices, backward, "attn.norm_bwd", 0, "writes")
    read_back = frozenset(name for op in backward for name in op.reads if not is_weight(name))
    return Cut(
        shapes=shapes,
        forward=passage(forward, read_back | frozenset(outputs)),
        evaluate=passage(forward, frozenset(outputs)),
        backward=passage(backward, frozenset(input_grads)),
        sums=passage([op for op in ops if op.role.startswith("step.tp.")]),
        inputs=_names(slices, forward, "attn.norm", 0, "reads"),
        outputs=outputs,
        output_grads=_names(slices, ops, "head.norm_bwd", last + 1, "writes"),
        input_grads=input_grads,
        recomputed=recomputed(ops),
        sides=sides_of(ops, plan.row_slices),
    )


def _names(
    slices: Iterable[int], ops: tuple[Op, ...], role: str, layer: int, which: str
) -> tuple[str, ...]:
    """Return the first value that the op of ``role`` reads or writes, for each slice."""
    found = {op.slice: getattr(op, which)[0] for op in ops if op.role == role and op.layer == layer}
    return tuple(found[row] for row in slices)


# A decoder stack that plays a plan ----------------------------------------------------------------
# One autograd function, whose halves are the schedule's.

Tensor = torch.Tensor
DTYPE_NAMES: Final[Mapping[torch.dtype, Dtype]] = {DTYPES[name]: name for name in get_args(Dtype)}


@dataclass(kw_only=True)
class StackPlayer:
    """Plays ``plan`` on this rank for batches of any shape. ``forwards`` counts micro-batches: the
    dropout masks of each are drawn from it and the seed. ``doubts``: of the batches so far."""

    plan: PlanFile
    stack: ShardedStack
    lanes: Mapping[int, Lane]
    tp_rank: int
    dp_rank: int
    training: Training
    doubts: Doubts
    replicas: Replicas
    forwards: int = 0
    _cuts: dict[tuple[int, int, torch.dtype], Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.casts = Casts(self.stack, self.doubts)
        self._buckets = buckets_of(self.stack)

    def cut(self, sequences: int, seq_length: int, dtype: torch.dtype) -> Cut:
        """Return the plan's ops for a batch of that shape, made once."""
        key = sequences, seq_length, dtype
        if key not in self._cuts:
            planned = self.plan.workload
            workload = Workload(  # whose kernels the plan was priced with does not matter here
                seq_length=seq_length, micro_batch_size=sequences, dtype=DTYPE_NAMES[dtype],
                recompute=planned.recompute, recompute_layers=planned.recompute_layers,
            )  # fmt: skip
            self._cuts[key] = cut_of(
                self.plan.model, workload, self.plan.cluster, self.plan.plan, self.plan.order
            )
        return self._cuts[key]

    def state(self, cut: Cut, dtype: torch.dtype, *, train: bool, keeps: bool) -> State:
        """Return the state of one micro-batch, whose weights have ``dtype``; ``keeps``: what
        backward needs."""
        shards = self.stack.shards.with_weights(self.casts.of(dtype, trains=keeps))
        shards.steps = self.forwards
        shards.step_count = torch.full((1,), float(self.forwards), device=shards.device)
        sequences = cut.shapes.workload.micro_batch_size
        return State(
            shapes=cut.shapes, parameters=shards, training=self.training, tp_rank=self.tp_rank,
            dp_rank=self.dp_rank, train=train, recomputed=cut.recomputed if keeps else cut.names,
            sides=cut.sides if keeps else {},
            tokens=torch.empty(sequences, 0, dtype=torch.long),
        )  # fmt: skip

    def gradients(self, cut: Cut, shards: Shards) -> Gradients:
        """Return room for the gradients of a micro-batch, in the parameters' dtype."""
        dtype = self.stack.gradient_dtype
        flat = torch.empty(shards.model_copy.shape, dtype=dtype, device=shards.device)
        return Gradients(shards, flat, cut.products)

    def means(self, ctx: Any, gradients: Gradients) -> StackMeans | None:
        """Have ``gradients`` averaged over replicas as they become complete, if they are to be."""
        if not self.replicas.averages:
            return None
        needed = added_to(ctx, [held.parameter for held in self.stack.held])
        if not needed:
            return None
        means = StackMeans(self.replicas, self._buckets, gradients, needed)
        gradients.complete = means.complete
        return means

    def play(
        self,
        state: State,
        *passages: executor.Passage,
        arriving: Mapping[str, Handle] | None = None,
    ) -> None:
        """Play ops on a state, in its own dtype; ``arriving``: values to wait for."""
        with torch.autocast(state.parameters.device.type, enabled=False):
            for played in passages:
                executor.play(state, self.lanes, played, NoClock(), arriving)

    def summed(self, x: Tensor) -> Tensor:
        """Return the sum over the tensor-parallel ranks of [sequences, seq_length, hidden], which
        comes slice by slice."""
        cut = self.cut(x.shape[0], x.shape[1], compute_dtype(x))
        return arriving_sum(x, *_cuts(cut.shapes), self.lanes[TP])

    def output(self, cut: Cut, state: State, hidden: Tensor, played: executor.Passage) -> Tensor:
        """Play a forward passage; return the stack's output for ``hidden``."""
        arriving: dict[str, Handle] = {}
        if isinstance(hidden, Arriving) and hidden.dtype == state.parameters.model_copy.dtype:
            slices = self.own_tokens(cut, hidden.parts)
            arriving.update(zip(cut.inputs, hidden.handles, strict=True))
        else:
            slices = self.slices(cut, hidden.to(state.parameters.model_copy.dtype))
        state.values.update(zip(cut.inputs, slices, strict=True))
        self.play(state, played, arriving=arriving)
        return self.joined(cut, [state.values[name] for name in cut.outputs]).to(hidden.dtype)

    def slices(self, cut: Cut, whole: Tensor) -> list[Tensor]:
        """Return this rank's tokens of each slice of [sequences, seq_length, hidden], one below the
        other where a merged weight gradient reads them so."""
        parts = torch.split(whole, *_cuts(cut.shapes))
        if cut.shapes.shards_tokens or not cut.shapes.plan.slices_sequences:
            return self.own_tokens(cut, parts)
        room = whole.new_empty(whole.shape[:-1].numel(), whole.shape[-1])
        rooms = torch.split(room, [part.shape[:-1].numel() for part in parts])
        for part, one in zip(parts, rooms, strict=True):
            one.view(part.shape).copy_(part)
        return list(rooms)

    def own_tokens(self, cut: Cut, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's tokens of slices."""
        tokens = [part.reshape(-1, part.shape[-1]) for part in parts]
        if not cut.shapes.shards_tokens:
            return tokens
        return [one.chunk(cut.shapes.cluster.tp)[self.tp_rank] for one in tokens]

    def joined(self, cut: Cut, parts: list[Tensor]) -> Tensor:
        """Join slices like those of ``slices``, from all ranks, to [sequences, seq_length,
        hidden]."""
        shapes = cut.shapes
        if shapes.shards_tokens:
            calls = [all_gather(part.contiguous(), shapes.cluster.tp) for part in parts]
            handles = [self.lanes[TP].issue("stack", call) for call in calls]
            for handle in handles:
                handle.wait()
            parts = [call.target for call in calls]
        hidden = parts[0].shape[-1]
        split = [
            part.view(shapes.rows[row], len(shapes.spans[row]), hidden)
            for row, part in enumerate(parts)
        ]
        return torch.cat(split, dim=_cuts(shapes)[1])


def _cuts(shapes: Shapes) -> tuple[list[int], int]:
    """Return the sizes of the slices, and the dimension that they cut: sequences or positions."""
    if shapes.plan.slices_sequences:
        return [len(span) for span in shapes.spans], 1
    return list(shapes.rows), 0


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that layers compute in for ``x``: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _Play(torch.autograd.Function):
    """Forward and backward of a stack. Inputs: hidden states and all parameters."""

    @staticmethod
    def forward(
        ctx: Any, one: StackPlayer, cut: Cut, state: State, hidden: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.player, ctx.cut, ctx.state, ctx.dtype = one, cut, state, hidden.dtype
        return one.output(cut, state, hidden, cut.forward)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        one, cut, state = ctx.player, ctx.cut, ctx.state
        if state is None:
            raise RunError(
                "backward ran twice through a stack that plays a plan: the first one consumed what "
                "forward kept. Leave out retain_graph=True, and run forward again."
            )
        ctx.state = None
        one.doubts.settle()
        dtype = state.parameters.model_copy.dtype
        state.parameters = gradients = one.gradients(cut, state.parameters)
        means = one.means(ctx, gradients)
        gradients.clear_added()
        slices = one.slices(cut, gradient.to(dtype))
        state.values.update(zip(cut.output_grads, slices, strict=True))
        one.play(state, cut.backward, cut.sums)
        gradients.finish()
        hidden = None
        if ctx.needs_input_grad[3]:
            parts = [state.values[name] for name in cut.input_grads]
            hidden = one.joined(cut, parts).to(ctx.dtype)
        if means is not None:
            means.finish()
        grads = one.stack.gradients(gradients.rounded, ctx.needs_input_grad[4:])
        return None, None, None, hidden, *grads


class Stack(NotCopied, nn.ModuleList):
    """The layers of a model, whose parameters keep their names. The forward of the model's ``body``
    meets one layer: the stack itself, which plays the plan. All others meet the layers."""

    def __init__(self, layers: nn.ModuleList, one: StackPlayer, body: nn.Module) -> None:
        super().__init__(layers)
        self.training = layers.training
        self.player = one
        self.is_played = False
        body.register_forward_pre_hook(partial(self._mark, played=True), prepend=True)
        body.register_forward_hook(partial(self._mark, played=False), always_call=True)

    def _mark(self, *_: Any, played: bool) -> None:
        self.is_played = played

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self]) if self.is_played else super().__iter__()

    @property
    def _is_fsdp_managed_module(self) -> bool:
        return False

    @_is_fsdp_managed_module.setter
    def _is_fsdp_managed_module(self, _: bool) -> None:
        raise InputError(NOT_SHARDED)  # FSDP says so before it does anything

    def __getitem__(self, index: Any) -> Any:
        if self.is_played and isinstance(index, slice):
            return [self]
        # A slice of a ModuleList is another of its class.
        return (
            nn.ModuleList([*self][index])
            if isinstance(index, slice)
            else super().__getitem__(index)
        )

    @eager
    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        *unused: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **other: Any,
    ) -> Tensor:
        """Return the last layer's output, [sequences, seq_length, hidden].

        Raise InputError for a cache, and for a mask other than the causal one: plans play neither.
        """
        one, keeps = self.player, torch.is_grad_enabled()
        dtype = compute_dtype(hidden_states)
        sequences, seq_length = hidden_states.shape[:2]
        try:
            one.stack.check_in_place()
            check_anomaly(cut=one.stack.mesh is not None)
            check_call(one.plan.model, hidden_states, attention_mask, past_key_values, one.doubts)
            cut = one.cut(sequences, seq_length, dtype)
            one.forwards += self.training
            state = one.state(cut, dtype, train=self.training, keeps=keeps)
        except InputError:
            if isinstance(hidden_states, Arriving):
                hidden_states.whole()  # a sum under way writes to memory that would be given back
            raise
        if position_embeddings is not None:
            half = one.plan.model.head_dim // 2
            cosine, sine = (t[0, :, None, :half].to(dtype) for t in position_embeddings)
            state.saved["rope"] = (cosine.contiguous(), sine.contiguous())
        if keeps:
            parameters = [held.parameter for held in one.stack.held]
            played: Tensor = _Play.apply(one, cut, state, hidden_states, *parameters)  # type: ignore[no-untyped-call]
            return played
        return one.output(cut, state, hidden_states, cut.evaluate)
