"""Ops in place on one GPU: a single rank plays layers of the presets as one of N would. A
signature's time is the median over all plans that have it, minus the empty span of two events.
Cases come in order of use, so that a time limit may end the list anywhere. What a case found joins
the stage's profile."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from domino_tune.base.units import half_spread
from domino_tune.measure.probe_set import timed_ops
from domino_tune.measure.probes.compute import SHORTEST_NS, Samples
from domino_tune.measure.profiling import SECTIONS, add_message
from domino_tune.runtime.clock import empty_ns, probing_clock, was_late
from domino_tune.runtime.lanes.groups import SilentLanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops import Training
from domino_tune.runtime.session import Session
from lab.gpu.cases import TP, TWO_SLICES, RankCase, preset_cases
from lab.gpu.stage import Found, GpuCase, Row, Stage, reason, release_memory
from simulator.lookup import Provenance
from simulator.ops import Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.profile import Profile
from simulator.schedule import COMPUTE
from simulator.specs import ClusterSpec, ModelSpec, Workload

MEASURED: Final = Provenance(
    kind="measured", source="scripts/gpu: one GPU, the runtime's own ops on a single rank's shard"
)
SECONDS: Final = 10.0
TRAINING_PLANS: Final = (MEGATRON, TWO_SLICES)
WARM_UP: Final = 2
STEPS: Final = (3, 12)


def op_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the presets' own batches."""
    return played(stage, preset_cases(memory_bytes(stage.device)))


def training_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield presets at TP 8 with two micro-batches a step and every layer recomputed."""
    twice: dict[str, Any] = {"grad_accumulation": 2, "recompute": "full", "recompute_modules": ()}
    cases = (case for case in preset_cases(memory_bytes(stage.device)) if case.tp == TP)
    works = ((case, replace(case.workload, **twice)) for case in cases)
    made = (replace(case, plans=TRAINING_PLANS, workload=work) for case, work in works)
    return played(stage, made)


def memory_bytes(device: torch.device) -> float:
    """Return the bytes that a case may need; the rest stays free for uncounted allocations."""
    return 0.7 * torch.cuda.get_device_properties(device).total_memory


def played(stage: Stage, cases: Iterable[RankCase]) -> Iterator[GpuCase]:
    """Yield the cases as measurements whose rows also join the stage's profile."""
    for case in cases:
        yield GpuCase(case.name, SECONDS, partial(joining, stage, case))


def joining(stage: Stage, case: RankCase, session: Session | None = None) -> Row:
    """Play the case on a session; its rows join the stage's profile."""
    playing, known = session or session_of(case, stage.device), set(timed_ops(stage.profile))
    message = play_case(playing, case, known, stage.stop_at)
    stage.profile = joined(stage.profile, message)
    return message


def joined(profile: Profile, message: Row) -> Profile:
    """Return the profile with the rows of a ``plan`` message."""
    grown = add_message(profile, dict(message))
    known: dict[str, Any] = {kind: getattr(grown, kind) for kind in SECTIONS}
    sections = {kind: replace(one, provenance=MEASURED) for kind, one in known.items() if one}
    return replace(grown, **sections)


def play_case(session: Session, case: RankCase, known: set[Signature], stop_at: float) -> Found:
    """Play what the case has and ``known`` has not, on ``session``, a single rank's. Return a
    profile's ``plan`` message. Plans without a new signature are left out. ``stop_at``
    (time.monotonic) ends it early, between plans; ``complete`` is then False. ``failed`` names
    plans that did not fit in memory."""
    found: Samples = defaultdict(list)
    failed: dict[str, str] = {}
    complete, seen = True, set(known)
    for plan in case.plans:
        news = case.signatures(plan) - seen
        if not news:
            continue
        if time.monotonic() > stop_at:
            complete = False
            break
        try:
            play_plan(session, plan, found)
        except RuntimeError as error:  # mostly out of memory: continue with smaller plans
            failed[plan.label] = reason(error)
            release_memory(session.context.device)
            continue
        seen |= news
    ops = [op_row(signature, times) for signature, times in sorted(found.items(), key=str)]
    span_us = empty_ns(session.context.device) / 1e3
    return {"kind": "plan", "ops": ops, "complete": complete, "failed": failed,
            "empty_span_us": span_us}  # fmt: skip


def play_plan(session: Session, plan: SlicePlan, found: Samples) -> None:
    """Play steps of one plan; collect its ops' ns of those that the host launched in time."""
    device, taken, begun = session.context.device, 0, time.monotonic()
    clock, empty = probing_clock(device), empty_ns(device)
    executor = session.executor(plan, None, clock=clock)
    for step in range(WARM_UP + 2 * STEPS[1]):
        timeline = executor.run_step(*session.batch).timeline
        session.context.beat()
        if step < WARM_UP or was_late(clock):
            continue
        for op, start, end in timeline.lane(COMPUTE):
            found[op.signature].append(max(SHORTEST_NS, end - start - empty))
        taken += 1
        enough = taken >= STEPS[0] and time.monotonic() - begun > 0.5
        if enough or taken == STEPS[1]:
            break


def op_row(signature: Signature, times: Sequence[float]) -> dict[str, Any]:
    """Return a row of a ``plan`` message from an op's times, ns."""
    return {
        "signature": [signature.kind, *signature], "median_us": statistics.median(times) / 1e3,
        "spread_us": half_spread(times) / 1e3, "samples": len(times),
    }  # fmt: skip


def session_of(case: RankCase, device: torch.device) -> Session:
    """Return a session of a case's rank, alone on its device."""
    return single_gpu_session(case.model, case.workload, case.cluster, device)


def single_gpu_session(
    model: ModelSpec, work: Workload, ranks: ClusterSpec, device: Any
) -> Session:
    """Return rank 0 of ``ranks``'s group, without attention dropout, with weights drawn on it."""
    lanes = SilentLanes(device)
    context = RankContext(
        rank=0, world_size=1, tp=ranks.tp, dp=ranks.dp, device=device,
        backend="nccl" if device.type == "cuda" else "gloo", lanes=lanes.default,
        tp_lane=lanes.tp_lane, control=dist.GroupMember.NON_GROUP_MEMBER,  # type: ignore[arg-type]
        send=lambda message: None, heart=lambda: None,
    )  # fmt: skip
    return Session(
        context=context, model=replace(model, attention_dropout=0.0), workload=work,
        cluster=ranks, training=Training(learning_rate=0.0), exact_weights=False,
    )  # fmt: skip
