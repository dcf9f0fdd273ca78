"""Data-parallel buckets: collectives between replicas as tokens of a layer's order.

``bucket`` reduces the gradients of a group of layers after the last of them; ``gather``, and in
backward ``gather_bwd``, collects the parameters of the next group ahead of its use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from simulator.issue_order import IssueOrder, Token
from simulator.schedule import COMPUTE, DP, OpTemplate, Ref
from simulator.shapes import Shapes
from simulator.templates import Templates

BUCKET: Final = "bucket"
GATHERS: Final = {"gather": ("dp.ag", "params"), "gather_bwd": ("dp.ag_bwd", "params_bwd")}
"""Fragment of a token -> role, and value of the parameters, of the group's first layer."""
FIRST_USES: Final = {
    ("attn", "norm"): "gather", ("attn", "norm_again"): "gather_bwd",
    ("mlp", "fc2_dgrad"): "gather_bwd",
}  # fmt: skip
"""The fragments with which a pass begins to use a layer's parameters -> how they were gathered."""
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
        if token.offset % layers == phase and token.fragment.endswith(("_wgrad", "norm_bwd"))
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


def bucket(t: Templates, token: Token, stride: int, gradients: Iterable[str]) -> list[OpTemplate]:
    """Return the sum of ``stride`` layers' gradients over the replicas; it belongs to the last."""
    reads = tuple(Ref(layer, name) for layer in range(stride) for name in gradients)
    ops = reduction(t, "dp", stride * t.shapes.layer_parameters, reads, "grad.dp")
    return [op.shifted(token.offset) for op in ops]


def reduction(
    t: Templates, prefix: str, parameters: int, reads: tuple[Ref, ...], write: str
) -> list[OpTemplate]:
    """Return the sum of ``parameters`` gradients over the replicas, and what is before it."""
    signature = t.shapes.dp_reduction(parameters)
    suffix = "rs" if signature.op == "reduce_scatter" else "ar"
    passes = gradient_passes(t, prefix, parameters, reads)
    reads = (*reads, *(ref for op in passes for ref in op.writes))
    return [*passes, t.op(f"{prefix}.{suffix}", -1, signature, reads, write, 0, lane=DP)]


def gradient_passes(
    t: Templates, prefix: str, parameters: int, reads: tuple[Ref, ...]
) -> list[OpTemplate]:
    """Return the passes over ``parameters`` gradients before replicas sum them: a check by their
    norm, and the division by the number of replicas."""
    s, how = t.shapes, t.shapes.workload.implementation
    size = parameters * s.grad_bytes
    scales = how.scale_grads and s.cluster.replicas > 1
    return t.passes(
        {
            f"{prefix}.check_grads": (how.check_for_nan_in_grad, s.pointwise("grad_norm", size, 4)),
            f"{prefix}.scale_grads": (scales, s.pointwise("grad_scale", size, size)),
        },
        reads,
    )


def gather(t: Templates, token: Token, layers: int) -> OpTemplate:
    """Return the op that gathers the parameters of ``layers`` layers, from ``token``'s layer on.

    Its value has no bytes here: ``simulator.memory`` counts the buffer of gathered parameters.
    """
    signature = t.shapes.dp_gather(layers * t.shapes.layer_parameters)
    role, write = GATHERS[token.fragment]
    return t.op(role, -1, signature, (), write, 0, lane=DP).shifted(token.offset)


def awaiting(token: Token, layers: int, templates: list[OpTemplate]) -> list[OpTemplate]:
    """Return ``token``'s templates; where it begins a group of ``layers``, their compute waits for
    its parameters."""
    gathered = FIRST_USES.get((token.block, token.fragment))
    if gathered is None or token.offset % layers:
        return templates
    first = next(index for index, op in enumerate(templates) if op.lane == COMPUTE)
    waits = Ref(0, GATHERS[gathered][1])
    late = templates[first]._replace(reads=(*templates[first].reads, waits))
    return [*templates[:first], late, *templates[first + 1 :]]
