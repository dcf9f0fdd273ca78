"""``intra``: one slice after the other, block by block; every block ends inside its layer.

Any number of row slices and column pieces. The compute of slice i + 1 (and of the next column
piece) hides the all-reduce of slice i; the layer's last all-reduce is exposed.
With one row slice and one column piece this is Megatron-LM's order.
"""

from __future__ import annotations

from simulator.issue_order import (
    BACKWARD_FRAGMENTS,
    BLOCKS,
    IssueOrder,
    LayerOrder,
    Token,
    place_wgrads,
    slice_tokens,
)
from simulator.plan import SlicePlan


def intra(plan: SlicePlan) -> LayerOrder:
    """Return the order ``intra`` of ``plan``."""
    return LayerOrder(
        forward=IssueOrder(tokens=tuple(_forward(plan))),
        backward=IssueOrder(tokens=place_wgrads(_backward(plan), plan)),
    )


def _forward(plan: SlicePlan) -> list[Token]:
    rows = range(plan.row_slices)
    tokens = []
    for i in rows:
        tokens += slice_tokens(plan, "attn", ("norm", "qkv", "core_attn", "proj"), i)
    for i in rows:
        tokens += slice_tokens(plan, "attn", ("residual",), i)
        tokens += slice_tokens(plan, "mlp", ("norm", "fc1", "act", "fc2"), i)
    for i in rows:
        tokens += slice_tokens(plan, "mlp", ("residual",), i)
    return tokens


def _backward(plan: SlicePlan) -> list[Token]:
    rows = plan.rows_back
    attn, mlp = (BACKWARD_FRAGMENTS[block][:-1] for block in BLOCKS)
    tokens = []
    for i in rows:
        tokens += slice_tokens(plan, "mlp", mlp, i)
    for i in rows:
        tokens += slice_tokens(plan, "mlp", ("norm_bwd",), i)
        tokens += slice_tokens(plan, "attn", attn, i)
    for i in rows:
        tokens += slice_tokens(plan, "attn", ("norm_bwd",), i)
    return tokens
