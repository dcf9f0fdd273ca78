"""Names of plans, with what they mean in words: as a tooltip, and spelt out in a key."""

from __future__ import annotations

from typing import Final

from domino_tune.report.markup import Html, tag
from domino_tune.results.shown import plan_words
from simulator.plan import SlicePlan

KEY: Final = (
    ("2x1/4", "2 row slices of the batch; attention's last linear in 1 column slice, the MLP's "
     "in 4"),
    ("dgrad 1/2", "pieces of the input gradients of the first linears, of attention and MLP, where "
     "they differ from the column slices"),
    ("seq", "row slices are stretches of each sequence"),
    ("greedy, inter, intra, paper", "the order in which slices take turns: planned from the "
     "profile, DeepSpeed's, inside a layer, the Domino paper's"),
    ("wgrad=eager, deferred, fill", "weight gradients beside their input gradient, behind both, or "
     "where computation would wait"),
    ("merged", "one weight-gradient GEMM for all row slices"),
    ("ctas=16", "thread blocks that communication may take"),
    ("sp", "sequence parallelism"),
    ("megatron, no_comm", "one slice, as Megatron-LM; the same with communication for free"),
)  # fmt: skip
"""Part of a plan's name -> what it means."""


def plan_name(plan: SlicePlan, name: str = "") -> Html:
    """Return the plan's label, or ``name``, with its words as a tooltip."""
    return tag("span", name or plan.label, title=plan_words(plan))


def plan_key() -> Html:
    """Return what each part of a plan's name means, closed at first."""
    rows = [tag("div", tag("dt", tag("code", part)), tag("dd", words)) for part, words in KEY]
    return tag(
        "details", tag("summary", "How to read a plan’s name"), tag("dl", *rows, class_="facts key")
    )
