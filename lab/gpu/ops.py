"""Ops in place on one GPU: a single rank plays layers of the presets as one of N would.

A signature's time is the median over all plans that have it, minus the empty span of two events.
Cases come in order of use, so that a time limit may end the list anywhere. What a case found joins
the stage's profile.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from domino_tune.measure.collect import add_message
from domino_tune.measure.op_rows import SECTIONS, measured_ops
from domino_tune.runtime.clock import empty_ns, probing_clock, was_late
from domino_tune.runtime.session import Session
from lab.gpu.played_plans import TP, TWO_SLICES
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage, release_memory
from simulator.build import build_schedule
from simulator.ops import Collective, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.provenance import Provenance
from simulator.schedule import COMPUTE
from simulator.slicing import SEQUENCE_ROW_SLICES
from simulator.specs import ClusterSpec, ModelSpec, Workload

MEASURED: Final = Provenance(
    kind="measured",
    source="scripts/gpu: one GPU, the runtime's own ops on a single rank's shard",
)
SECONDS: Final = 10.0
TRAINING_PLANS: Final = (MEGATRON, TWO_SLICES)
LAYERS: Final = 2
WARM_UP: Final = 2
STEPS: Final = (3, 12)
PLAN_SECONDS: Final = 0.5
SHORTEST_NS: Final = 100
FAMILIES: Final = (
    ("gpt3-13b", 2048), ("llama2-7b", 4096), ("llama2-70b", 4096), ("llama2-13b", 4096),
    ("gpt3-6.7b", 2048), ("gpt3-175b", 2048), ("llama3-8b", 8192), ("llama3-70b", 8192),
    ("gpt3-1.3b", 2048), ("gpt3-2.7b", 2048), ("gpt3-30b", 2048), ("llama3-405b", 8192),
)  # fmt: skip
"""Presets with the sequence length of their training, most requested first."""
DEGREES: Final = (8, 4, 2, 1)
TOKENS: Final = {8: 32_768, 4: 32_768, 2: 16_384, 1: 16_384}
"""Most tokens of a batch, by degree: a step should take a fraction of a second."""


@dataclass(frozen=True, kw_only=True)
class OpsCase:
    """A model's layers on one rank of ``tp``, and the plans to play on it."""

    model: ModelSpec
    workload: Workload
    tp: int
    plans: tuple[SlicePlan, ...]

    @property
    def name(self) -> str:
        """Return a name for progress and for the record of finished cases."""
        work = self.workload
        return f"{self.model.name}/tp{self.tp}/b{work.micro_batch_size}x{work.seq_length}"

    @property
    def cluster(self) -> ClusterSpec:
        """Return the cluster that the rank is a part of, in its own view."""
        return ClusterSpec(tp=self.tp)


def op_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the presets' own batches."""
    return played(stage, ops_cases(memory_bytes(stage.device)))


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
    return played(stage, cases)


def played(stage: Stage, cases: Iterable[OpsCase]) -> Iterator[GpuCase]:
    """Yield the cases as measurements whose rows also join the stage's profile."""
    for case in cases:
        yield GpuCase(name=case.name, seconds=SECONDS, measure=partial(_played, stage, case))


def _played(stage: Stage, case: OpsCase) -> Row:
    session = single_gpu_session(case.model, case.workload, case.cluster, stage.device)
    return joining(stage, session, case)


def joining(stage: Stage, session: Session, case: OpsCase) -> Row:
    """Play the case on ``session``; its rows join the stage's profile."""
    message = play_case(session, case, measured_ops(stage.profile), stage.stop_at)
    grown = add_message(stage.profile, message)
    known = {kind: getattr(grown, kind) for kind in SECTIONS}
    stage.profile = replace(
        grown,
        **{kind: replace(one, provenance=MEASURED) for kind, one in known.items() if one},
    )
    return message


def ops_cases(memory_bytes: float) -> Iterator[OpsCase]:
    """Yield all presets at all degrees that fit in ``memory_bytes``, most useful first: TP 8 of
    every preset, then TP 4, …"""
    for tp in DEGREES:
        for name, seq in FAMILIES:
            model = replace(MODELS[name], num_hidden_layers=LAYERS)
            batch = max(1, min(8, TOKENS[tp] // seq))
            case = OpsCase(
                model=model,
                workload=Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16"),
                tp=tp,
                plans=slice_plans(batch),
            )
            if needed_bytes(case) <= memory_bytes:
                yield case


def memory_bytes(device: torch.device) -> float:
    """Return the bytes that a case may need; the rest stays free for uncounted allocations."""
    return 0.7 * torch.cuda.get_device_properties(device).total_memory


def slice_plans(batch: int) -> tuple[SlicePlan, ...]:
    """Return plans with one to eight row slices, then with column pieces, with slices of sequences,
    and with sequence parallelism."""
    rows = [count for count in (2, 4, 1, 3, 8, 5, 6, 7) if count <= batch]
    cuts = [(count, 1) for count in rows] + [(2, 2), (1, 2), (1, 4), (2, 4)]
    sliced = [
        SlicePlan(
            row_slices=count, attn_col_slices=columns, mlp_col_slices=columns, order="intra",
            wgrad="eager",
        )
        for count, columns in cuts
        if count <= batch
    ]  # fmt: skip
    along = [
        SlicePlan(
            row_slices=count, order="intra", wgrad="eager", slice_dim="sequence",
            slice_balance="even",
        )
        for count in SEQUENCE_ROW_SLICES
    ]  # fmt: skip
    sharded = [replace(plan, sequence_parallel=True) for plan in (MEGATRON, *sliced[:1], along[0])]
    return (MEGATRON, *sliced, *along, *sharded)


def needed_bytes(case: OpsCase) -> float:
    """Return the rough bytes of parameters, optimizer states, logits and layers' activations."""
    m, tokens = case.model, case.workload.micro_batch_size * case.workload.seq_length
    layer = m.hidden_size * (m.qkv_size + m.attention_size + m.fc1_size + m.intermediate_size)
    tables = m.vocab_size * m.hidden_size * (1 if m.tie_word_embeddings else 2)
    weights = 18.0 * (m.num_hidden_layers * layer + tables) / case.tp
    logits = 12.0 * tokens * m.vocab_size / case.tp
    widths = m.qkv_size + m.attention_size + m.fc1_size + m.intermediate_size
    activations = 2.0 * tokens * m.num_hidden_layers * (10 * m.hidden_size + 2 * widths / case.tp)
    return weights + logits + activations


def needed_signatures(case: OpsCase, plan: SlicePlan) -> set[Signature]:
    """Return the compute signatures of one plan."""
    schedule = build_schedule(
        replace(case.model, attention_dropout=0.0), case.workload, case.cluster, plan
    )
    return {op.signature for op in schedule.ops() if not isinstance(op.signature, Collective)}


def play_case(
    session: Session, case: OpsCase, known: set[Signature], stop_at: float
) -> dict[str, Any]:
    """Play what the case has and ``known`` has not, on ``session``, a single rank's. Return a
    profile's ``plan`` message.

    Plans without a new signature are left out. ``stop_at`` (time.monotonic) ends it early, between
    plans; ``complete`` is then False. ``failed`` names plans that did not fit in memory.
    """
    found: dict[Signature, list[float]] = defaultdict(list)
    failed: dict[str, str] = {}
    late, complete, seen = 0, True, set(known)
    device = session.context.device
    for plan in case.plans:
        news = needed_signatures(case, plan) - seen
        if not news:
            continue
        if time.monotonic() > stop_at:
            complete = False
            break
        try:
            late += _play(session, plan, found)
        except RuntimeError as error:  # mostly out of memory: continue with smaller plans
            failed[plan.label] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            release_memory(device)
            continue
        seen |= news
    return {
        "kind": "plan",
        "complete": complete,
        "failed": failed,
        "late_steps": late,
        "empty_span_us": empty_ns(device) / 1e3,
        "ops": [op_row(signature, times) for signature, times in sorted(found.items(), key=str)],
    }


def _play(session: Session, plan: SlicePlan, found: dict[Signature, list[float]]) -> int:
    """Play steps of one plan; return how many were discarded because the host was late."""
    device = session.context.device
    clock, empty = probing_clock(device), empty_ns(device)
    executor = session.executor(plan, None, clock=clock)
    late, taken, begun = 0, 0, time.monotonic()
    for step in range(WARM_UP + 2 * STEPS[1]):
        timeline = executor.run_step(*session.batch).timeline
        session.context.beat()
        if step < WARM_UP:
            begun = time.monotonic()
            continue
        if was_late(clock):
            late += 1
            continue
        taken += 1
        for op, start, end in zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True):
            if op.lane == COMPUTE:
                found[op.signature].append(max(SHORTEST_NS, end - start - empty))
        enough = time.monotonic() - begun > PLAN_SECONDS and taken >= STEPS[0]
        if enough or taken == STEPS[1]:
            break
    return late


def op_row(signature: Signature, times: Sequence[float]) -> dict[str, Any]:
    """Return a row of a ``plan`` message from an op's times, ns."""
    ordered = sorted(times)
    quarter = len(ordered) // 4
    return {
        "signature": [signature.kind, *signature],
        "median_us": round(statistics.median(ordered) / 1e3, 4),
        "spread_us": round((ordered[-1 - quarter] - ordered[quarter]) / 2e3, 4),
        "samples": len(ordered),
    }
