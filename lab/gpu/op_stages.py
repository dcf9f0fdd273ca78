"""Stages that play layers in place: the presets' own batches, what else training plays, and token
counts between: log-spaced, and where GEMMs begin another wave. Each message joins the profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from domino_tune.measure.collect import add_message
from domino_tune.measure.op_rows import measured_ops
from lab.gpu.ops import FAMILIES, OpsCase, memory_bytes, needed_bytes, ops_cases, play_case
from lab.gpu.played_plans import TP, TWO_SLICES
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.provenance import Provenance
from simulator.specs import ModelSpec, Workload

SOURCE: Final = "domino_tune gpu-profile: one GPU, the runtime's own ops on a single rank's shard"
MEASURED: Final = Provenance(kind="measured", source=SOURCE)
OPS_SECONDS: Final = 10.0
WAVES_SECONDS: Final = 1.5
TRAINING_PLANS: Final = (MEGATRON, TWO_SLICES)
LEAST_TOKENS: Final = 512
MOST_TOKENS: Final = 16_384
TO_THE_NEXT: Final = math.sqrt(2)
TILE: Final = (128, 256)
"""Rows and columns of C that one CTA of the large Hopper kernels computes (cuBLAS 12)."""
WAVES: Final = (1, 2, 4)
"""Numbers of full waves of CTAs after which a step is measured, on both sides."""


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


def wave_cases(sm_count: int, memory_bytes: float) -> Iterator[OpsCase]:
    """Yield one layer of each preset at TP 8, unsliced, at every token count that fits in memory.

    With more degrees a layout would have more rows than ``simulator.lookup.gemm_points`` takes.
    """
    for name, _ in FAMILIES:
        model = replace(MODELS[name], num_hidden_layers=1)
        for tokens in token_counts(_widths(model), sm_count):
            case = OpsCase(
                model=model, workload=workload_of(tokens, model), tp=TP, plans=(MEGATRON,)
            )
            if needed_bytes(case) <= memory_bytes:
                yield case


def token_counts(widths: Iterable[int], sm_count: int) -> list[int]:
    """Return log-spaced counts, then the last before and the first after a step of each width."""
    steps = math.log(MOST_TOKENS / LEAST_TOKENS, TO_THE_NEXT)
    spaced = [64 * round(LEAST_TOKENS * TO_THE_NEXT**step / 64) for step in range(round(steps) + 1)]
    around = [
        tokens
        for width in widths
        for waves in WAVES
        for tokens in around_step(width, waves, sm_count)
        if LEAST_TOKENS <= tokens <= MOST_TOKENS
    ]
    return list(dict.fromkeys([*spaced, *around]))


def around_step(width: int, waves: int, sm_count: int) -> tuple[int, int]:
    """Return the most tokens that fill at most ``waves`` waves of a GEMM with ``width`` columns of
    C, and one tile more."""
    rows, columns = TILE
    last = rows * (waves * sm_count // math.ceil(width / columns))
    return last, last + rows


def workload_of(tokens: int, model: ModelSpec) -> Workload:
    """Return ``tokens`` as the fewest sequences that the model allows."""
    most = model.max_position_embeddings
    batch = next(b for b in range(math.ceil(tokens / most), tokens + 1) if tokens % b == 0)
    return Workload(seq_length=tokens // batch, micro_batch_size=batch, dtype="bf16")


def _widths(model: ModelSpec) -> tuple[int, ...]:
    """Return columns of C, forward: of fc1, of both row-parallel linears, and of qkv."""
    return model.fc1_size // TP, model.hidden_size, model.qkv_size // TP
