"""Cases between the presets' own batches: other token counts, log-spaced and where GEMMs begin
another wave, so that look-ups learn what tables of round sizes cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from lab.gpu.ops import FAMILIES, OpsCase, needed_bytes
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.specs import ModelSpec, Workload

TP: Final = 8
LEAST_TOKENS: Final = 512
MOST_TOKENS: Final = 16_384
TO_THE_NEXT: Final = math.sqrt(2)
TILE: Final = (128, 256)
"""Rows and columns of C that one CTA of the large Hopper kernels computes (cuBLAS 12)."""
WAVES: Final = (1, 2, 4)
"""Numbers of full waves of CTAs after which a step is measured, on both sides."""


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
