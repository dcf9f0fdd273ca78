"""What a tuning space needs measured: runs that between them contain every signature of it.

Ops are timed in place, while a schedule plays without communication, so that caches hold what they
hold in training. Each run is a plan; together they contain every GEMM, attention and pointwise
signature of the space, each once if it can be helped, the most useful first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.build import build_schedule
from simulator.ops import Collective, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.schedule import Schedule
from simulator.specs import ClusterSpec, ModelSpec, Workload

PROBE_LAYERS = 2
"""Layers of a model whose own are more than PROBE_FULL."""
PROBE_FULL = 4


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Plans to play, and the collectives that the space issues."""

    model: ModelSpec
    plans: tuple[SlicePlan, ...]
    collectives: tuple[Collective, ...]


def probe_model(model: ModelSpec) -> ModelSpec:
    """The model with few enough layers to be played often: all layers have the same signatures."""
    if model.num_hidden_layers <= PROBE_FULL:
        return model
    return replace(model, num_hidden_layers=PROBE_LAYERS)


def coverage(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    row_slices: Sequence[int],
    col_slices: Sequence[int],
) -> Coverage:
    """Runs for all combinations of row and column slices, most useful first.

    Few slices come first: they are the plans that win, and between measured ones others can be
    interpolated if time runs out.
    """
    probe = probe_model(model)
    wanted = [MEGATRON]
    wanted += [
        SlicePlan(
            row_slices=rows,
            attn_col_slices=columns,
            mlp_col_slices=columns,
            order="intra",
            wgrad="eager",
        )
        for columns in sorted(col_slices)
        for rows in _useful_first(row_slices)
        if rows <= workload.micro_batch_size and model.hidden_size % columns == 0
    ]
    seen: set[Signature] = set()
    plans = []
    for plan in wanted:
        schedule = build_schedule(probe, workload, cluster, plan)
        fresh = _signatures(schedule) - seen
        if any(not isinstance(signature, Collective) for signature in fresh):
            plans.append(plan)
        seen |= fresh
    collectives = sorted(s for s in seen if isinstance(s, Collective))
    return Coverage(model=probe, plans=tuple(plans), collectives=tuple(collectives))


def _useful_first(row_slices: Iterable[int]) -> list[int]:
    """Powers of two before the rest, small before large."""
    return sorted(set(row_slices), key=lambda rows: (rows & (rows - 1) != 0, rows))


def _signatures(schedule: Schedule) -> set[Signature]:
    return {
        template.signature
        for part in schedule.parts
        for segment in part.segments
        for template in segment.templates
    }
