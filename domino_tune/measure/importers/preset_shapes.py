"""Shapes of the presets' ops: find imported rows that no preset looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from simulator.build import build_schedule
from simulator.errors import InfeasiblePlanError, InputError
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.ops import Attention, Gemm, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, ModelSpec, Workload

MOST_TP: Final = 8
CUTS: Final = (2, 4, 8)
"""Column slices whose shapes count, besides the whole."""
Shape = tuple[str | int | bool, ...]


def unknown_shapes(rows: Sequence[Any]) -> tuple[str, ...]:
    """Return a warning if no row of GEMMs or attention in ``rows`` has the shape of a preset.

    Tokens and batch do not count: look-ups interpolate well along them.
    """
    shapes = {_shape(row.signature) for row in rows if isinstance(row, GemmRow | AttentionRow)}
    if not shapes or not shapes.isdisjoint(preset_shapes()):
        return ()
    is_gemm = isinstance(rows[0], GemmRow)
    names = "GEMM shapes (n, k)" if is_gemm else "attention shapes (heads, head size, causal)"
    return (
        f"None of the {len(shapes):,} imported {names} occurs in any preset at tp 1…{MOST_TP}; "
        "look-ups for presets will interpolate.",
    )


@cache
def preset_shapes() -> frozenset[Shape]:
    """Return the shapes of all presets at every tp up to MOST_TP, whole and sliced."""
    workload = Workload(seq_length=128, micro_batch_size=1)
    found: set[Shape | None] = set()
    for model in MODELS.values():
        for tp in range(1, MOST_TP + 1):
            for plan in _plans():
                found |= _shapes_of(model, workload, ClusterSpec(tp=tp), plan)
    return frozenset(shape for shape in found if shape)


def _plans() -> tuple[SlicePlan, ...]:
    cut = [
        SlicePlan(
            strategy="domino",
            row_slices=1,
            attn_col_slices=c,
            mlp_col_slices=c,
            order="intra",
            wgrad="eager",
        )
        for c in CUTS
    ]
    return (MEGATRON, *cut)


def _shapes_of(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan
) -> set[Shape | None]:
    """Return the shapes of a layer of each kind and the edges; an empty set if the model cannot be
    sharded or cut this way.
    """
    short = replace(model, num_hidden_layers=1 + model.first_k_dense_replace)
    shards = model.num_experts > 0 and cluster.tp > 1
    try:
        schedule = build_schedule(short, workload, cluster, replace(plan, sequence_parallel=shards))
    except (InputError, InfeasiblePlanError):
        return set()
    return {_shape(template.signature) for template in schedule.templates()}


def _shape(op: Signature) -> Shape | None:
    """Return an op's shape without its tokens; None for ops identified by their bytes."""
    if isinstance(op, Gemm):
        return (op.layout, op.m, op.n) if op.layout == "wgrad" else (op.layout, op.n, op.k)
    if isinstance(op, Attention):
        return op.direction, op.heads, op.kv_heads, op.head_dim, op.causal
    return None
