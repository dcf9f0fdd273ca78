"""Variants: other frameworks' kernels for the same mathematics, which the runtime does not play.

Cross-entropy compiled into one kernel a pass, and written out in fp32 as Megatron-LM does without
fusion; attention with its scores in memory, and with backward in a fixed order; attention of a part
of the queries; what adds, scales and clears gradients by itself; tables' gradients made whole.
(In a fixed order it is FlashAttention's kernel; otherwise torch may take cuDNN's.) ``late``: calls
waited for the host, so that they are no times of the device.
Signatures are those of schedules, so that rows answer look-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.gpu.events import Work
from domino_tune.runtime.clock import empty_ns
from lab.gpu.arena import Arena
from lab.gpu.cases import TP, RankCase, preset_cases
from lab.gpu.ops import op_row
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import reason
from lab.gpu.variant_works import MAKERS, Sizes
from simulator.build import build_schedule
from simulator.implementation import IMPLEMENTATIONS, Implementation
from simulator.ops import Attention, Collective, Gemm, Pointwise, Signature
from simulator.plan import MEGATRON
from simulator.sharding import padded_vocab_size

PRESETS: Final = ("gpt3-13b", "llama3-8b")
IMPLEMENTED: Final[tuple[Implementation, ...]] = (
    IMPLEMENTATIONS["megatron-te"], IMPLEMENTATIONS["megatron-2022"], IMPLEMENTATIONS["torch"],
    replace(IMPLEMENTATIONS["domino-tune"], deterministic_attention=True),
)  # fmt: skip
QUERIES: Final = ((8_192, 8), (32_768, 8), (131_072, 4))
"""Positions of one sequence, and slices of it: the queries of each meet all keys before them."""
SECONDS: Final = 20.0


class Variant(NamedTuple):
    """A signature, and what makes its work; None where nothing plays it."""

    signature: Signature
    make: Callable[[], Work] | None


def variant_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield a case per preset, and one of queries that end where keys do."""
    arena = cache(Arena)  # made on the GPU, with the first case
    for case in preset_cases(float("inf")):
        if case.tp == TP and case.model.name in PRESETS:
            yield GpuCase(
                name=case.name, seconds=SECONDS,
                measure=partial(_measured, arena, partial(preset_variants, case)),
            )  # fmt: skip
    yield GpuCase(
        name="queries of a part", seconds=SECONDS,
        measure=partial(_measured, arena, query_variants),
    )  # fmt: skip


def preset_variants(case: RankCase) -> list[Variant]:
    """Return the ops that only the other implementations launch for a step of the case."""
    ours = set(_signatures(case, IMPLEMENTATIONS["domino-tune"]))
    sizes = Sizes(
        tokens=case.workload.tokens,
        hidden_size=case.model.hidden_size,
        vocab=padded_vocab_size(case.model, case.cluster) // TP,
        seq_length=case.workload.seq_length,
    )
    found: dict[Signature, Variant] = {}
    for implementation in IMPLEMENTED:
        for signature, role in _signatures(case, implementation).items():
            if signature in ours or signature in found or _is_elsewhere(signature):
                continue
            make = MAKERS.get(_maker_name(signature, role))
            work = partial(make, signature, sizes) if make else None
            found[signature] = Variant(signature, work)
    return list(found.values())


def query_variants() -> list[Variant]:
    """Return attention of four heads of 128, one key head: every slice of a sequence, both ways."""
    found = []
    for seq, slices in QUERIES:
        own = seq // slices
        for number in range(1, slices):
            one = Attention(1, 4, 1, own, 128, kv_seq=own * (number + 1))
            for signature in (one, one._replace(direction="backward")):
                found.append(Variant(signature, partial(MAKERS["attention"], signature, None)))
    return found


def _is_elsewhere(signature: Signature) -> bool:
    """Return whether it is a weight gradient that adds to fp32 sums, which stage ``training`` has,
    or an op that moves nothing."""
    if isinstance(signature, Pointwise):
        return not signature.moved_bytes
    return isinstance(signature, Gemm) and signature.accumulate


def _maker_name(signature: Signature, role: str) -> str:
    """Return the key in MAKERS of the function that plays a signature."""
    name = getattr(signature, "name", signature.kind)
    return f"{name} {role}" if "cross_entropy" in name else name


def _signatures(case: RankCase, implementation: Implementation) -> dict[Signature, str]:
    """Return the compute signatures of an unsliced step, each with a role that has it."""
    workload = replace(case.workload, implementation=implementation)
    schedule = build_schedule(case.model, workload, case.cluster, MEGATRON)
    return {
        op.signature: op.role for op in schedule.ops() if not isinstance(op.signature, Collective)
    }


def _measured(arena: Callable[[], Arena], variants: Callable[[], list[Variant]]) -> Row:
    return measured(arena(), variants())


def measured(arena: Arena, variants: list[Variant]) -> Row:
    """Return rows for the variants that could be played, and the reasons why the others could
    not."""
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    empty = empty_ns(torch.device("cuda"))
    for signature, make in variants:
        if make is None:
            failed[str(signature)] = "nothing plays it"
            continue
        try:
            found = arena.calls_alone(make())
        except Exception as error:  # out of memory, or no compiler: continue with the others
            failed[str(signature)] = reason(error)
            continue
        row = op_row(signature, [max(1.0, took - empty) for took in found])
        rows.append({**row, "late": arena.was_late})
    return {"ops": rows, "failed": failed}
