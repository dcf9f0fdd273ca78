"""Launches on one GPU: what the host spends on an op, eager and as a CUDA graph."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from domino_tune.measure.probes.launch import launch_row
from domino_tune.runtime.session import Session
from lab.gpu.op_stages import MEASURED
from lab.gpu.played_plans import TWO_SLICES
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.profile import LaunchSection
from simulator.specs import ClusterSpec, Workload

CASES: Final = (
    ("gpt3-13b", 2048, 8, 8), ("llama2-13b", 4096, 4, 8), ("gpt3-1.3b", 2048, 4, 8),
)  # fmt: skip
"""Preset, sequence length, sequences, TP degree."""
PLANS: Final = (
    MEGATRON,
    TWO_SLICES,
    SlicePlan(row_slices=4, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"),
)
SECONDS: Final = 8.0


def launch_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield launch costs plan by plan; the first case's go into the profile."""

    @lru_cache(maxsize=1)  # plans of a case follow each other
    def session(name: str, seq: int, batch: int, tp: int) -> Session:
        model = replace(MODELS[name], num_hidden_layers=2)
        workload = Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16")
        return single_gpu_session(model, workload, ClusterSpec(tp=tp), stage.device)

    def costs(case: tuple[str, int, int, int], plan: SlicePlan) -> Row:
        row = launch_row(session(*case), plan)
        _save(stage, row)
        return row

    for case in CASES:
        for plan in PLANS:
            yield GpuCase(
                name=f"{case[0]} {plan.label}", seconds=SECONDS,
                measure=partial(costs, case, plan), tell=told,
            )  # fmt: skip


def told(row: Row) -> str:
    """Return the row without what it says of single roles."""
    return json.dumps({name: value for name, value in row.items() if name != "cost_us_by_role"})


def _save(stage: Stage, row: Row) -> None:
    if stage.profile.launch is None:
        section = LaunchSection(mode="async", cost_us=row["cost_us"], provenance=MEASURED)
        stage.profile = replace(stage.profile, launch=section)
