"""Merged weight gradients: one GEMM over all row slices, and the copies that its inputs need.

The runtime has most kernels write a slice of dy or x beside the others (``runtime/ops/joins.py``).
Those of libraries that choose their own place cannot: attention's output, LayerNorm's and the
gradient of dropout, where ranks hold all tokens. Their slices are put together by a copy, an op.
"""

from __future__ import annotations

from typing import Final

from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.specs import ModelSpec

JOINED: Final = ".joined"
"""End of the names of values that all slices were copied into."""
SIDES: Final = ("dy", "x")


def copied(model: ModelSpec, block: str, linear: str, *, gathered: bool) -> tuple[bool, bool]:
    """Return whether a copy puts together dy, and x, of the merged weight gradient of a linear;
    ``gathered``: what ranks share is gathered in front of it."""
    if linear == COLUMN_PARALLEL[block]:
        return False, model.norm == "layernorm" and not gathered
    return model.hidden_dropout > 0 and not gathered, block == "attn"


def copies(model: ModelSpec, *, gathered: bool) -> int:
    """Return how many copies a layer has."""
    linears = [(b, of[b]) for b in BLOCKS for of in (COLUMN_PARALLEL, ROW_PARALLEL)]
    return sum(sum(copied(model, *linear, gathered=gathered)) for linear in linears)
