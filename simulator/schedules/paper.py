"""``paper``: figures 9 and 10 of the Domino paper (arXiv 2409.15241), for two row slices.

The norms of both slices come together, and so do their bias + dropout + residual ops. So only the
first slice's pointwise ops hide the second slice's all-reduce.
"""

from __future__ import annotations

from simulator.issue_order import (
    BACKWARD_FRAGMENTS,
    IssueOrder,
    LayerOrder,
    Token,
    place_wgrads,
    slice_tokens,
)
from simulator.plan import SlicePlan


def paper(plan: SlicePlan) -> LayerOrder:
    """Return the order ``paper`` of ``plan``; it needs 2 row slices and 1 column piece."""
    return LayerOrder(
        forward=IssueOrder(tokens=tuple(_forward(plan))),
        backward=IssueOrder(tokens=place_wgrads(_backward(plan), plan)),
    )


def _forward(plan: SlicePlan) -> list[Token]:
    tokens = [token for i in (0, 1) for token in slice_tokens(plan, "attn", ("norm",), i)]
    for i in (0, 1):
        tokens += slice_tokens(plan, "attn", ("qkv", "core_attn", "proj"), i)
    for i in (0, 1):
        tokens += slice_tokens(plan, "attn", ("residual",), i)
        tokens += slice_tokens(plan, "mlp", ("norm",), i)
    for i in (0, 1):
        tokens += slice_tokens(plan, "mlp", ("fc1", "act", "fc2"), i)
    for i in (0, 1):
        tokens += slice_tokens(plan, "mlp", ("residual",), i)
    return tokens


def _backward(plan: SlicePlan) -> list[Token]:
    tokens = []
    for block, above in (("mlp", None), ("attn", "mlp")):
        for i in (1, 0):
            if above:
                tokens += slice_tokens(plan, above, ("norm_bwd",), i)
            tokens += slice_tokens(plan, block, ("residual_bwd",), i)
        for i in (1, 0):
            tokens += slice_tokens(plan, block, BACKWARD_FRAGMENTS[block][1:-1], i)
    for i in (1, 0):
        tokens += slice_tokens(plan, "attn", ("norm_bwd",), i)
    return tokens
