"""Gradients and parameters between replicas: buckets, what Adam keeps, the iteration's end.

``bucket`` reduces the gradients of a group of layers after the last of them; ``gather``, and in
backward ``gather_bwd``, collects the parameters of the next group ahead of its use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from simulator.dtypes import MomentsDtype
from simulator.issue_order import IssueOrder, Token
from simulator.ops import Collective
from simulator.quantized import cast_weights
from simulator.schedule import COMPUTE, DP, TP, OpTemplate
from simulator.shapes import GRAD_BYTES, Shapes
from simulator.sharding import Held
from simulator.specs import Workload
from simulator.templates import Templates
from simulator.values import Ref, main_gradient

BUCKET: Final = "bucket"
GATHERS: Final = {
    "gather": ("dp.ag", Ref("params")), "gather_bwd": ("dp.ag_bwd", Ref("params_bwd")),
}  # fmt: skip
"""Fragment of a token -> role, and value of the parameters, of the group's first layer."""
FIRST_USES: Final = {
    ("attn", "norm"): "gather", ("attn", "norm_again"): "gather_bwd",
    ("mlp", "fc2_dgrad"): "gather_bwd",
}  # fmt: skip
"""The fragments with which a pass begins to use a layer's parameters -> how they were gathered."""
BUCKET_SUM: Final = main_gradient("dp")
"""What a bucket of layers becomes."""
DP_BUCKET_PARAMETERS: Final = 40_000_000
"""Fewest parameters of one data-parallel bucket (Megatron-LM's default)."""


def layers_per_bucket(shapes: Shapes, stride: int) -> int:
    """Return the layers of one bucket, in whole repetitions of ``stride``: one with FSDP."""
    if shapes.shards_parameters:
        return stride
    return math.ceil(math.ceil(DP_BUCKET_PARAMETERS / shapes.layer_parameters) / stride) * stride


def with_buckets(order: IssueOrder, layers: int) -> IssueOrder:
    """Return ``order`` over ``layers`` layers, with one bucket token for their gradients.

    ``layers`` is a multiple of the order's stride. The bucket token follows right after the last
    issued gradient of the layer that comes last in the pass.
    """
    tokens = _copies(order, layers)
    phase = layers - 1
    gradients = [
        (-token.offset, position)
        for position, token in enumerate(tokens)
        if token.offset % layers == phase and (token.is_wgrad or token.fragment == "norm_bwd")
    ]
    latest, position = max(gradients)
    tokens.insert(position + 1, Token("", BUCKET, -1, offset=-latest))
    return replace(order, tokens=tuple(tokens), stride=layers)


def with_gathers(order: IssueOrder, layers: int, fragment: str) -> IssueOrder:
    """Return ``order`` over ``layers`` layers, which begins with the gather of the next ones."""
    tokens = order.tokens if order.stride == layers else tuple(_copies(order, layers))
    return replace(order, tokens=(Token("", fragment, -1, offset=layers), *tokens), stride=layers)


def _copies(order: IssueOrder, layers: int) -> list[Token]:
    copies = range(layers // order.stride)
    return [token.shifted(copy * order.stride) for copy in copies for token in order.tokens]


def bucket(t: Templates, token: Token, stride: int, gradients: Iterable[Ref]) -> list[OpTemplate]:
    """Return the sum of ``stride`` layers' gradients over the replicas; it belongs to the last."""
    reads = tuple(one.at(layer) for layer in range(stride) for one in gradients)
    ops = reduction(t, "dp", t.shapes.layer * stride, reads, BUCKET_SUM)
    return [op.shifted(token.offset) for op in ops]


def reduction(
    t: Templates, prefix: str, held: Held, reads: tuple[Ref, ...], write: Ref
) -> list[OpTemplate]:
    """Return the sums of gradients over the replicas, those of experts last, and what is before
    them. The last one writes ``write``."""
    passes = gradient_passes(t, prefix, held, reads)
    reads = (*reads, *(ref for op in passes for ref in op.writes))
    ops = list[OpTemplate]()
    for name, parameters, experts in (("", held.rest, False), (".experts", held.experts, True)):
        if parameters:
            signature = t.shapes.dp_reduction(parameters, experts=experts)
            suffix = "rs" if signature.op == "reduce_scatter" else "ar"
            role, last = f"{prefix}{name}.{suffix}", experts or not held.experts
            value = write if last else write.form("rest")
            ops.append(t.op(role, -1, signature, reads, value, 0, lane=DP))
    return [*passes, *ops]


def gradient_passes(
    t: Templates, prefix: str, held: Held, reads: tuple[Ref, ...]
) -> list[OpTemplate]:
    """Return the passes over gradients before replicas sum them: a check by their norm, and the
    division by the number of replicas."""
    s, how = t.shapes, t.shapes.workload.implementation
    size = held.whole * s.grad_bytes
    scales = how.scale_grads and s.replicas > 1
    return t.passes(
        {
            f"{prefix}.check_grads": (how.check_for_nan_in_grad, s.pointwise("grad_norm", size, 4)),
            f"{prefix}.scale_grads": (scales, s.pointwise("grad_scale", size, size)),
        },
        reads,
    )


def gather(t: Templates, token: Token, layers: int) -> list[OpTemplate]:
    """Return the ops that gather the parameters of ``layers`` layers, from ``token``'s layer on.

    Their values have no bytes here: ``simulator.memory`` counts the buffer of gathered parameters.
    """
    role, write = GATHERS[token.fragment]
    made = parameter_gathers(t, role, t.shapes.layer * layers, (), write)
    return [op.shifted(token.offset) for op in made]


def parameter_gathers(
    t: Templates, role: str, held: Held, reads: tuple[Ref, ...], write: Ref, edge: int = 0
) -> list[OpTemplate]:
    """Return the gathers of parameters from the replicas, those of experts first; the last one
    writes ``write``. ``edge``: parameters outside the layers."""
    s, ops = t.shapes, list[OpTemplate]()
    if held.experts:
        signature = s.dp_gather(held.experts, experts=True)
        ops.append(t.op(f"{role}.experts", -1, signature, reads, write.form("experts"), 0, lane=DP))
    signature = s.dp_gather(held.rest, edge=edge)
    return [*ops, t.op(role, -1, signature, reads, write, 0, lane=DP)]


def awaiting(token: Token, layers: int, templates: Sequence[OpTemplate]) -> list[OpTemplate]:
    """Return ``token``'s templates; where it begins a group of ``layers``, their compute waits for
    its parameters."""
    gathered = FIRST_USES.get((token.block, token.fragment))
    if gathered is None or token.offset % layers:
        return list(templates)
    first = next(index for index, op in enumerate(templates) if op.lane == COMPUTE)
    waits = GATHERS[gathered][1]
    late = templates[first]._replace(reads=(*templates[first].reads, waits))
    return [*templates[:first], late, *templates[first + 1 :]]


# What Adam keeps of a parameter -------------------------------------------------------------------
# Its two moments, and a main parameter in fp32.
#
# Moments below fp32 are those of Megatron-LM's precision-aware optimizer, TransformerEngine's
# FusedAdam. It also keeps, in the place of a main parameter, the 16 bits that its parameter in BF16
# lacks (``store_param_remainders``), where it has the main parameters at all: with FP8 that has no
# delayed scaling Megatron-LM has them (``use_precision_aware_optimizer_no_fp8_or_ds_fp8``).

MOMENT_BYTES: Final[dict[MomentsDtype, int]] = {"fp32": 4, "bf16": 2, "fp8": 1}
"""Bytes of one of the moments; in FP8 with a scale a tensor."""
MAIN_BYTES: Final = 4
"""Bytes of an fp32 main parameter; it exists beside a parameter of fewer bytes."""


def keeps_remainders(workload: Workload) -> bool:
    """Return whether a main parameter is kept as what its parameter in BF16 lacks."""
    owns = workload.fp8_recipe in ("none", "delayed") and not workload.fp8_param_gather
    return workload.moments_dtype != "fp32" and workload.dtype == "bf16" and owns


def moments_bytes(workload: Workload) -> int:
    """Return the bytes of a parameter's two moments."""
    return 2 * MOMENT_BYTES[workload.moments_dtype]


def state_bytes(workload: Workload) -> int:
    """Return the bytes that are kept of a parameter beside itself."""
    main = MAIN_BYTES if workload.dtype_bytes < MAIN_BYTES else 0
    kept = MAIN_BYTES - workload.dtype_bytes if keeps_remainders(workload) else main
    return kept + moments_bytes(workload)


# The end of an iteration --------------------------------------------------------------------------
# Sums of gradients over ranks, their norm, Adam, new parameters.

WORLD_NORM: Final = "step.grad_norm.ar"
NORMS: Final = (WORLD_NORM, "step.adam")
"""Roles of the first op that no rank begins before all others have come so far; without
communication Adam stands for it."""
"""Role of the gradient norm's sum over ranks: behind it none is ahead of another."""


def begin_step(t: Templates) -> list[OpTemplate]:
    """Return the casts of weights that are quantized, and the pass that clears the main gradients,
    where the implementation has one."""
    s, casts = t.shapes, cast_weights(t)
    if not s.workload.implementation.zero_grads:
        return casts
    held = s.optimizer_parameters if s.shards_parameters else s.held.whole
    cleared = s.pointwise("zero_grads", 0, held * s.grad_bytes)
    return [*casts, t.op("zero_grads", -1, cleared, (), main_gradient("zeroed"), 0)]


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
        return reduction(t, "step.dp", held, reads, Ref("step.dp"))
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
        ops += parameter_gathers(
            t, "step.dp.ag", s.held, last, Ref("step.params"), s.edge_parameters
        )
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
        pack = t.op("step.tp.pack", -1, copy, reads, Ref("step.tp"), size)
        summed = t.op("step.tp.ar", -1, total, pack.writes, Ref("step.tp").form("ar"), 0, lane=TP)
        back = t.op("step.tp.unpack", -1, copy, summed.writes, Ref("step.tp").form("whole"), 0)
        ops += [pack, summed, back]
    if s.kv_copies > 1:
        last = (main_gradient("embed"),)
        ops.append(t.op("step.kv.ar", -1, s.copies_all_reduce(), last, Ref("step.kv"), 0, lane=TP))
    return ops


def _norm(t: Templates, reads: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the sum of squares, and its sum over the ranks that hold other parameters: over all,
    where optimizer state is sharded or layers are."""
    s = t.shapes
    read = s.grad_bytes * s.optimizer_parameters
    square = t.op(
        "step.grad_norm", -1, s.pointwise("grad_norm", read, 4), reads, Ref("step.norm"), 4
    )
    over_all = (s.reduces and s.shards_optimizer) or s.cluster.pp > 1
    if s.plan.strategy == "no_comm" or not over_all:
        return t.reduced(square, 4, "fp32")
    signature = Collective("all_reduce", 4, *s.cluster.world_group, 0, "fp32")
    summed = t.op(WORLD_NORM, -1, signature, square.writes, Ref("step.norm").form("ar"), 0, lane=DP)
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
        ops.append(t.op("step.moments", -1, wider, source, Ref("step.moments"), whole * parameters))
        source = ops[-1].writes
    ops.append(t.op("step.adam", -1, adam, source, Ref("step.done"), 0))
    if scaled:  # once for the largest number, once to write
        narrower = s.pointwise("copy", 2 * whole * parameters, kept * parameters)
        reads = (*source, *ops[-1].writes)
        ops.append(t.op("step.scale_moments", -1, narrower, reads, Ref("step.scaled"), 0))
    if apart:
        copies = s.pointwise("copy", MAIN_BYTES * parameters, s.element * parameters)
        ops.append(t.op("step.copy_params", -1, copies, ops[-1].writes, Ref("step.copied"), 0))
    return ops
