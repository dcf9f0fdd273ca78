"""Result of simulate: a plan beside the baseline and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from domino_tune.results.json_form import HIDDEN, LabelledPlan
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from simulator.case import Case
from simulator.issue_order import LayerOrder
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One plan's prediction, times in ms; ``comm_ms``: time with a collective in flight."""

    label: str
    iteration_ms: float
    compute_ms: float
    comm_ms: float
    exposed_comm_ms: float
    idle_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The interval that should contain the true value: times in ms, speedups as ratios."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A plan beside the baseline (Megatron) and the bound (no communication).

    ``speedup`` is baseline_ms / iteration_ms. ``confidence`` is high, medium or low.
    ``confidence_shares``: share of the time by the source of its look-ups.
    """

    iteration_ms: float
    baseline_ms: float
    no_comm_ms: float
    speedup: float
    comm_ms: float
    exposed_comm_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    interval_ms: Interval
    confidence: str
    confidence_shares: dict[str, float]
    warnings: tuple[str, ...]
    plan: LabelledPlan
    profile: ProfileRef
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    variants: dict[str, Variant]
    time_by_role_ms: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SimulateResult(Simulated):
    """The same where it was computed, with the data of traces, pages and plan files."""

    timelines: Mapping[str, Timeline] = field(metadata=HIDDEN, repr=False)
    order: LayerOrder = field(metadata=HIDDEN, repr=False)
    case: Case = field(metadata=HIDDEN, repr=False)

    @cached_property
    def plan_file(self) -> PlanFile:
        """Return the plan file."""
        return PlanFile(
            model=self.model,
            workload=self.workload,
            cluster=self.cluster,
            profile=self.profile,
            plan=self.plan,
            order=self.order,
            predicted=Predicted(
                iteration_ms=self.iteration_ms,
                baseline_ms=self.baseline_ms,
                no_comm_ms=self.no_comm_ms,
                peak_memory_gib=self.peak_memory_gib,
            ),
        )


def workload_line(model: ModelSpec, workload: Workload, cluster: ClusterSpec, profile: str) -> str:
    """Return one line that names model, profile, ranks and batch."""
    parts = [
        f"{model.name} on {profile}", f"tp {cluster.tp}", f"dp {cluster.dp}",
        f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}",
        f"seq {workload.seq_length}", f"micro-batch {workload.micro_batch_size}",
        f"grad accumulation {workload.grad_accumulation}", workload.dtype,
    ]  # fmt: skip
    return ", ".join([*parts, *(["CUDA graphs"] if cluster.cuda_graph else [])])
