"""The end of an iteration: sums of gradients over ranks, their norm, Adam, new parameters."""

from __future__ import annotations

from typing import Final

from simulator.buckets import gathers as gathered_parameters
from simulator.buckets import gradient_passes, reduction
from simulator.ops import Collective
from simulator.optimizer_state import MAIN_BYTES, keeps_remainders, moments_bytes
from simulator.quantized import cast_weights
from simulator.schedule import DP, TP, OpTemplate, Ref
from simulator.shapes import GRAD_BYTES, Held
from simulator.templates import Templates

WORLD_NORM: Final = "step.grad_norm.ar"
"""Role of the gradient norm's sum over ranks: behind it none is ahead of another."""


def begin_step(t: Templates) -> list[OpTemplate]:
    """Return the casts of weights that are quantized, and the pass that clears the main gradients,
    where the implementation has one."""
    s, casts = t.shapes, cast_weights(t)
    if not s.workload.implementation.zero_grads:
        return casts
    held = s.optimizer_parameters if s.shards_parameters else s.rank_parameters
    cleared = s.pointwise("zero_grads", 0, held * s.grad_bytes)
    return [*casts, t.op("zero_grads", -1, cleared, (), "grad.zeroed", 0)]


def optimizer_step(
    t: Templates, last_bucket: Held, reads: tuple[Ref, ...], *, gathers: bool = False
) -> list[OpTemplate]:
    """Return the last data-parallel bucket, then ``update``.

    ``gathers``: the updated parameters are gathered from the replicas at the end.
    """
    ops = summed_gradients(t, last_bucket, reads)
    reads = (*reads, *(ref for op in ops[-1:] for ref in op.writes))
    return ops + update(t, reads, gathers=gathers)


def summed_gradients(t: Templates, held: Held, reads: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the sums of gradients over the replicas, and the passes before them."""
    if t.shapes.reduces:
        return reduction(t, "step.dp", held, reads, "step.dp")
    return gradient_passes(t, "step", held, reads)


def update(t: Templates, reads: tuple[Ref, ...], *, gathers: bool) -> list[OpTemplate]:
    """Return the sums of partial gradients and of those of copied key-value heads, the global
    gradient norm, Adam, and the gather of the parameters."""
    s, ops = t.shapes, []
    for op in _sums_over_ranks(t, reads):
        ops.append(op)
        reads = (*reads, *op.writes)
    ops += _norm(t, reads)
    ops += _passes(t, ops[-1].writes)
    ops += _update(t, ops[-1].writes)
    if gathers:
        last = ops[-1].writes
        ops += gathered_parameters(t, "step.dp.ag", s.held, last, "step.params", s.edge_parameters)
    return ops


def _sums_over_ranks(t: Templates, reads: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the sums of partial gradients, which are copied together and back (Megatron-LM's
    ``_allreduce_layernorm_grads``), and of those of copied key-value heads."""
    s, ops = t.shapes, []
    if not s.communicates:
        return []
    if s.partial_parameters:
        size = s.partial_parameters * GRAD_BYTES
        copy, total = s.pointwise("copy", size, size), s.tp_all_reduce(size, "fp32")
        pack = t.op("step.tp.pack", -1, copy, reads, "step.tp", size)
        summed = t.op("step.tp.ar", -1, total, pack.writes, "step.tp.ar", 0, lane=TP)
        back = t.op("step.tp.unpack", -1, copy, summed.writes, "step.tp.whole", 0)
        ops += [pack, summed, back]
    if s.kv_copies > 1:
        last = (Ref(0, "grad.embed"),)
        ops.append(t.op("step.kv.ar", -1, s.copies_all_reduce(), last, "step.kv", 0, lane=TP))
    return ops


def _norm(t: Templates, reads: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the sum of squares, and its sum over the ranks that hold other parameters: over all,
    where optimizer state is sharded or layers are."""
    s = t.shapes
    read = s.grad_bytes * s.optimizer_parameters
    square = t.op("step.grad_norm", -1, s.pointwise("grad_norm", read, 4), reads, "step.norm", 4)
    over_all = (s.reduces and s.shards_optimizer) or s.cluster.pp > 1
    if s.plan.strategy == "no_comm" or not over_all:
        return t.reduced(square, 4, "fp32")
    signature = Collective("all_reduce", 4, *s.cluster.world_group, 0, "fp32")
    summed = t.op(WORLD_NORM, -1, signature, square.writes, "step.norm.ar", 0, lane=DP)
    return [square, summed]


def _passes(t: Templates, norm: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the passes over gradients and parameters between their norm and Adam."""
    s, how = t.shapes, t.shapes.workload.implementation
    gradients = s.grad_bytes * s.optimizer_parameters
    main = MAIN_BYTES * s.optimizer_parameters
    return t.passes(
        {
            "step.clip_grad": (how.clip_grad, s.pointwise("grad_scale", gradients, gradients)),
            "step.params_norm": (how.log_params_norm, s.pointwise("grad_norm", main, 4)),
            "step.num_zeros": (
                how.log_num_zeros_in_grad, s.pointwise("grad_norm", gradients, 4),
            ),
        },
        norm,
    )  # fmt: skip


def _update(t: Templates, source: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return Adam, and the copies to the model's parameters where they are kernels of their own.

    Moments in BF16 are those of its kernel; those in FP8 become fp32 before it, and FP8 after it
    (TransformerEngine's FusedAdam: ``get_unscaled_state``, ``_apply_scale``).
    """
    s, parameters = t.shapes, t.shapes.optimizer_parameters
    whole, kept = 2 * MAIN_BYTES, moments_bytes(s.workload)
    remainders, scaled = keeps_remainders(s.workload), s.workload.moments_dtype == "fp8"
    moments, main = whole if scaled else kept, MAIN_BYTES - s.element * remainders
    copies_apart = s.workload.implementation.copy_parameters and s.element < MAIN_BYTES
    apart = copies_apart and not remainders
    adam = s.pointwise(
        "adam",
        (MAIN_BYTES + moments + s.grad_bytes) * parameters,
        (main + moments + (0 if apart else s.element)) * parameters,
    )
    ops: list[OpTemplate] = []
    if scaled:
        wider = s.pointwise("copy", kept * parameters, whole * parameters)
        ops.append(t.op("step.moments", -1, wider, source, "step.moments", whole * parameters))
        source = ops[-1].writes
    ops.append(t.op("step.adam", -1, adam, source, "step.done", 0))
    if scaled:  # once for the largest number, once to write
        narrower = s.pointwise("copy", 2 * whole * parameters, kept * parameters)
        reads = (*ops[0].writes, *ops[-1].writes)
        ops.append(t.op("step.scale_moments", -1, narrower, reads, "step.scaled", 0))
    if apart:
        copies = s.pointwise("copy", MAIN_BYTES * parameters, s.element * parameters)
        ops.append(t.op("step.copy_params", -1, copies, ops[-1].writes, "step.copied", 0))
    return ops
