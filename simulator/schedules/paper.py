"""``paper``: figures 9 and 10 of the Domino paper (arXiv 2409.15241), for two row slices.

Both slices' normalisations stand together and so do both bias + dropout + residual steps, so the
second slice's all-reduce hides behind the first one's pointwise ops only.
"""

from __future__ import annotations

from simulator.issue_order import LayerOrder, Line, Token, place_wgrads, run
from simulator.plan import SlicePlan


def paper(plan: SlicePlan) -> LayerOrder:
    """Lines of ``paper``; exists for 2 row slices and 1 column slice."""
    return LayerOrder(
        forward=Line(tokens=tuple(_forward(plan))),
        backward=Line(tokens=place_wgrads(_backward(plan), plan)),
    )


def _forward(plan: SlicePlan) -> list[Token]:
    tokens = [*run(plan, "attn", ("norm",), 0), *run(plan, "attn", ("norm",), 1)]
    for i in (0, 1):
        tokens += run(plan, "attn", ("a", "core", "b"), i)
    for i in (0, 1):
        tokens += run(plan, "attn", ("out",), i) + run(plan, "mlp", ("norm",), i)
    for i in (0, 1):
        tokens += run(plan, "mlp", ("a", "core", "b"), i)
    for i in (0, 1):
        tokens += run(plan, "mlp", ("out",), i)
    return tokens


def _backward(plan: SlicePlan) -> list[Token]:
    body = ("b_dgrad", "b_wgrad", "core'", "a_dgrad", "a_wgrad")
    tokens = []
    for block, above in (("mlp", None), ("attn", "mlp")):
        for i in (1, 0):
            if above:
                tokens += run(plan, above, ("norm'",), i)
            tokens += run(plan, block, ("out'",), i)
        for i in (1, 0):
            tokens += run(plan, block, body, i)
    for i in (1, 0):
        tokens += run(plan, "attn", ("norm'",), i)
    return tokens
