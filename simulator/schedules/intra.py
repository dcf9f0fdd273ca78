"""``intra``: slices in turn, block by block; every block finishes inside its layer.

Any number of row and column slices. Slice i's all-reduce hides behind the computation of slice
i + 1 (and behind the next column piece); the layer's last one is exposed.
With one row and one column slice this is Megatron-LM's order.
"""

from __future__ import annotations

from simulator.issue_order import LayerOrder, Line, Token, place_wgrads, run
from simulator.plan import SlicePlan


def intra(plan: SlicePlan) -> LayerOrder:
    """Lines of ``intra`` for ``plan``."""
    return LayerOrder(
        forward=Line(tokens=tuple(_forward(plan))),
        backward=Line(tokens=place_wgrads(_backward(plan), plan)),
    )


def _forward(plan: SlicePlan) -> list[Token]:
    rows = range(plan.row_slices)
    tokens = []
    for i in rows:
        tokens += run(plan, "attn", ("norm", "a", "core", "b"), i)
    for i in rows:
        tokens += run(plan, "attn", ("out",), i)
        tokens += run(plan, "mlp", ("norm", "a", "core", "b"), i)
    for i in rows:
        tokens += run(plan, "mlp", ("out",), i)
    return tokens


def _backward(plan: SlicePlan) -> list[Token]:
    rows = range(plan.row_slices)
    body = ("out'", "b_dgrad", "b_wgrad", "core'", "a_dgrad", "a_wgrad")
    tokens = []
    for i in rows:
        tokens += run(plan, "mlp", body, i)
    for i in rows:
        tokens += run(plan, "mlp", ("norm'",), i)
        tokens += run(plan, "attn", body, i)
    for i in rows:
        tokens += run(plan, "attn", ("norm'",), i)
    return tokens
