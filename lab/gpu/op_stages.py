"""Stages that play layers in place: the presets' own batches, what else training plays, and token
counts between. Each message joins the profile at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from domino_tune.measure.collect import add_message
from domino_tune.measure.op_rows import measured_ops
from lab.gpu.ops import OpsCase, memory_bytes, ops_cases, play_case
from lab.gpu.played_plans import TP, TWO_SLICES
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.waves import wave_cases
from simulator.plan import MEGATRON
from simulator.profile import Profile
from simulator.provenance import Provenance

SOURCE: Final = "domino_tune gpu-profile: one GPU, the runtime's own ops on a single rank's shard"
MEASURED: Final = Provenance(kind="measured", source=SOURCE)
OPS_SECONDS: Final = 10.0
WAVES_SECONDS: Final = 1.5
TRAINING_PLANS: Final = (MEGATRON, TWO_SLICES)


def op_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the presets' own batches."""
    return played(stage, ops_cases(memory_bytes(stage.device)), OPS_SECONDS)


def training_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the presets at TP 8 with two micro-batches a step, where weight gradients add to fp32
    sums, and with every layer recomputed."""
    cases = (
        replace(
            case, plans=TRAINING_PLANS,
            workload=replace(case.workload, grad_accumulation=2, recompute="full"),
        )
        for case in ops_cases(memory_bytes(stage.device))
        if case.tp == TP
    )  # fmt: skip
    return played(stage, cases, OPS_SECONDS)


def between_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield token counts between those of the presets."""
    cases = wave_cases(
        torch.cuda.get_device_properties(stage.device).multi_processor_count,
        memory_bytes(stage.device),
    )
    return played(stage, cases, WAVES_SECONDS)


def played(stage: Stage, cases: Iterable[OpsCase], seconds: float) -> Iterator[GpuCase]:
    """Yield the cases as measurements whose rows also join the stage's profile."""
    for case in cases:
        yield GpuCase(
            name=case.name, seconds=seconds, measure=partial(_play, stage, case), tell=told
        )


def _play(stage: Stage, case: OpsCase) -> Row:
    session = single_gpu_session(case.model, case.workload, case.cluster, stage.device)
    message = play_case(session, case, measured_ops(stage.profile), stage.stop_at)
    stage.profile = _with_source(add_message(stage.profile, message))
    return message


def told(row: Row) -> str:
    """Return how many signatures were found, and what failed."""
    return f"{len(row['ops'])} signatures, {row['late_steps']} late {row['failed'] or ''}".strip()


def _with_source(profile: Profile) -> Profile:
    sections = {
        name: replace(section, provenance=MEASURED)
        for name in ("gemm", "attention", "pointwise")
        if (section := getattr(profile, name)) is not None
    }
    return replace(profile, **sections)
