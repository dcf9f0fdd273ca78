"""Plan files of any strategy, to export."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload

LLAMA = MODELS["llama3-8b"]
SHARDED = replace(MEGATRON, sequence_parallel=True)
USERBUFFERS = replace(SHARDED, strategy="userbuffers")
ASYNC_TP = replace(SHARDED, strategy="async-tp")
FUSED = replace(SHARDED, strategy="fused")
DOMINO = SlicePlan(row_slices=2, order="greedy", wgrad="fill", sequence_parallel=True)
WORKLOAD = Workload(
    seq_length=4096, micro_batch_size=2, grad_accumulation=4,
    implementation=IMPLEMENTATIONS["megatron-te"],
)  # fmt: skip
CLUSTER = ClusterSpec(tp=8)


def told(plan: SlicePlan, *texts: str) -> SlicePlan:
    """Return the plan with methods of GEMMs."""
    return replace(plan, tp_comm_overlap=texts)


def on(name: str, **changes: Any) -> Workload:
    """Return the workload with an implementation of that name, and changes of it."""
    return replace(WORKLOAD, implementation=replace(IMPLEMENTATIONS[name], **changes))


def plan_file(
    plan: SlicePlan = SHARDED,
    model: ModelSpec = LLAMA,
    workload: Workload = WORKLOAD,
    cluster: ClusterSpec = CLUSTER,
    machine: Profile | None = None,
) -> PlanFile:
    """Return a plan file for a profile, the bundled one of an H100 where none is given, with
    made-up predictions."""
    machine = machine or profile()
    case = Case(
        model=model, workload=replace(workload, dtype="bf16"), cluster=cluster, profile=machine
    )
    return PlanFile(
        model=model, workload=workload, cluster=cluster, profile=ProfileRef.of(machine),
        plan=plan, order=order_of(case, plan),
        predicted=Predicted(
            iteration_ms=1234.56, baseline_ms=1345.67, no_comm_ms=1000.0, peak_memory_gib=40.0
        ),
    )  # fmt: skip


@cache
def profile() -> Profile:
    """Return the bundled profile."""
    return load_profile("h100-dgx")
