"""Data-parallel buckets: collectives between replicas as tokens of a layer's order.

``bucket`` reduces the gradients of a group of layers after the last of them; ``gather``, and in
backward ``gather_bwd``, collects the parameters of the next group ahead of its use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from simulator.issue_order import IssueOrder, Token
from simulator.schedule import COMPUTE, DP, OpTemplate, Ref
from simulator.shapes import Held, Shapes
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
    s, reads = t.shapes, tuple(Ref(layer, name) for layer in range(stride) for name in gradients)
    ops = reduction(t, "dp", s.layer * stride, reads, "grad.dp")
    return [op.shifted(token.offset) for op in ops]


def reduction(
    t: Templates, prefix: str, held: Held, reads: tuple[Ref, ...], write: str
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
            value = write if last else f"{write}.rest"
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
    made = gathers(t, role, t.shapes.layer * layers, (), write)
    return [op.shifted(token.offset) for op in made]


def gathers(
    t: Templates, role: str, held: Held, reads: tuple[Ref, ...], write: str, edge: int = 0
) -> list[OpTemplate]:
    """Return the gathers of parameters from the replicas, those of experts first; the last one
    writes ``write``. ``edge``: parameters outside the layers."""
    s, ops = t.shapes, list[OpTemplate]()
    if held.experts:
        signature = s.dp_gather(held.experts, experts=True)
        ops.append(t.op(f"{role}.experts", -1, signature, reads, f"{write}.experts", 0, lane=DP))
    signature = s.dp_gather(held.rest, edge=edge)
    return [*ops, t.op(role, -1, signature, reads, write, 0, lane=DP)]


def awaiting(token: Token, layers: int, templates: Sequence[OpTemplate]) -> list[OpTemplate]:
    """Return ``token``'s templates; where it begins a group of ``layers``, their compute waits for
    its parameters."""
    gathered = FIRST_USES.get((token.block, token.fragment))
    if gathered is None or token.offset % layers:
        return list(templates)
    first = next(index for index, op in enumerate(templates) if op.lane == COMPUTE)
    waits = Ref(0, GATHERS[gathered][1])
    late = templates[first]._replace(reads=(*templates[first].reads, waits))
    return [*templates[:first], late, *templates[first + 1 :]]
