"""Result of simulate: a plan compared with the baseline and the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Final

from domino_tune.base.tables import Table
from domino_tune.results.json_form import HIDDEN, LabelledPlan
from domino_tune.results.memory import UsableMemory
from domino_tune.results.pipeline import Pipeline, stages_table
from domino_tune.results.shown import Shown, frame
from domino_tune.results.texts import cost_line, ms, share
from domino_tune.results.verdict import Verdict
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from simulator.case import Case, Cost
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.schedule import Timeline
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.usable import percent

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One plan's prediction, times in ms; ``comm_ms``: time with a collective in flight.

    ``memory_gib``: the peak by category. ``fits``: whether the peak is within the usable memory;
    ``fits_chance``: how likely the job fits. ``tflops_per_gpu`` and ``mfu`` count model FLOPs;
    ``mfu`` is None if the profile has no peak of the dtype. ``clock_mhz``, ``power_w`` (of a GPU in
    forward and backward, limited by the cap) and ``joules_per_token`` (of all GPUs) are None if the
    profile has no law of power.
    """

    label: str
    iteration_ms: float
    compute_ms: float
    comm_ms: float
    exposed_comm_ms: float
    idle_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    memory_gib: dict[str, float]
    fits: bool
    fits_chance: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    clock_mhz: int | None
    power_w: float | None
    joules_per_token: float | None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The interval that should contain the true value: times in ms, speedups as ratios."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Simulated(Shown):
    """A plan compared with the baseline (Megatron) and the bound (no communication).

    ``speedup`` is baseline_ms / iteration_ms. The baseline has sequence parallelism wherever that
    is possible; ``baseline_no_sp_ms`` and ``speedup_no_sp`` are those of Megatron without it, None
    if that is impossible (a warning says why).

    ``fits`` and ``fits_chance`` are the chosen plan's, ``usable_memory`` is the memory that it must
    fit in. ``confidence`` is high, medium or low. ``confidence_shares``: share of the time by the
    source of its look-ups. ``verdict``: a comparison of the strategies, and how sure it is; None if
    it was not asked for. ``cost``: None without a price of a GPU hour. ``bubble_ms``: how long the
    busiest stage of a pipeline waits for others. ``pipeline`` is None without one;
    ``stage_memory_gib``: the peak of each stage.
    """

    iteration_ms: float
    baseline_ms: float
    no_comm_ms: float
    speedup: float
    baseline_no_sp_ms: float | None
    speedup_no_sp: float | None
    comm_ms: float
    exposed_comm_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    memory_gib: dict[str, float]
    fits: bool
    fits_chance: float
    usable_memory: UsableMemory
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    clock_mhz: int | None
    power_w: float | None
    joules_per_token: float | None
    cost: Cost | None
    interval_ms: Interval
    confidence: str
    confidence_shares: dict[str, float]
    warnings: tuple[str, ...]
    plan: LabelledPlan
    profile: ProfileRef
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    bubble_ms: float
    pipeline: Pipeline | None
    stage_memory_gib: tuple[float, ...]
    variants: dict[str, Variant]
    time_by_role_ms: dict[str, float]
    verdict: Verdict | None

    def tables(self) -> Sequence[Table]:
        """Return the verdict, then baselines, chosen plan and bound, one row each, with the
        confidence, and the stages of a pipeline."""
        table = Table(
            title=workload_line(self.model, self.workload, self.cluster, self.profile.name),
            columns=(
                "", "plan", ">iteration", ">speedup", ">compute", ">comm", ">exposed", ">hidden",
                ">idle", ">memory", ">fits", ">tokens/s/GPU", ">TFLOP/s/GPU", ">MFU",
            ),
            rows=[
                _variant_row(name, variant, self.baseline_ms)
                for name, variant in self.variants.items()
            ],
            marked=(list(self.variants).index("chosen"),),
            notes=(
                _memory_line(self), self.usable_memory.text, *_power_line(self),
                *cost_line(self.cost), _confidence_line(self),
            ),
            narrow=(
                "plan", "idle", "compute", "comm", "TFLOP/s/GPU", "hidden", "exposed",
                "tokens/s/GPU", "memory", "fits",
            ),
            below="plan",
        )  # fmt: skip
        return (
            *((self.verdict.table(),) if self.verdict else ()),
            table,
            *((stages_table(self.pipeline, self.stage_memory_gib),) if self.pipeline else ()),
        )

    def alerts(self) -> Sequence[str]:
        """Return the warnings of the prediction."""
        return self.warnings

    def to_frame(self) -> DataFrame:
        """Return one row per variant: baseline, baseline_no_sp, chosen, no_comm (the index)."""
        numbers = [
            item.name for item in fields(Variant) if item.name not in ("label", "memory_gib")
        ]
        rows = [
            {
                "variant": name, "plan": variant.label, **asdict(variant),
                "speedup": self.baseline_ms / variant.iteration_ms,
            }
            for name, variant in self.variants.items()
        ]  # fmt: skip
        return frame(rows, ["variant", "plan", "speedup", *numbers]).set_index("variant")


@dataclass(frozen=True, kw_only=True)
class SimulateResult(Simulated):
    """The same on the machine that computed it, with the data for traces, pages and plan files."""

    plans: Mapping[str, SlicePlan] = field(metadata=HIDDEN, repr=False)
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
        f"{model.name} on {profile}", *cluster.levels.split(" × "),
        *([f"vpp {cluster.vpp}"] if cluster.vpp > 1 else []),
        *_experts(model, workload, cluster),
        f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}",
        f"seq {workload.seq_length}", f"micro-batch {workload.micro_batch_size}",
        f"grad accumulation {workload.grad_accumulation}", workload.dtype,
        *([f"linears {workload.fp8_recipe}"] if workload.fp8_recipe != "none" else []),
        workload.implementation.label,
        *(["multimem collectives"] if workload.tp_collectives == "multimem" else []),
    ]  # fmt: skip
    scopes = [f"CUDA graphs of {' and '.join(workload.cuda_graph_scope)}"]
    graphs = ["CUDA graphs"] if cluster.cuda_graph else scopes * bool(workload.cuda_graph_scope)
    return ", ".join([*parts, *graphs])


def _experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return how experts are divided; [] of a model without."""
    if not model.num_experts:
        return []
    shared = [f"etp {cluster.etp}"] if cluster.etp else []
    uneven = workload.moe_imbalance != 1
    imbalance = [f"imbalance {workload.moe_imbalance:g}"] if uneven else []
    sms = f" on {workload.moe_dispatcher_sms} SMs" * bool(workload.moe_dispatcher_sms)
    return [f"ep {cluster.ep}", *shared, f"tokens by {workload.moe_dispatcher}{sms}", *imbalance]


NAMES: Final = {"no_comm": "bound", "baseline_no_sp": "no SP"}
"""Names of variants in tables, if they differ."""


def _variant_row(name: str, variant: Variant, baseline_ms: float) -> tuple[str, ...]:
    return (
        NAMES.get(name, name), variant.label, ms(variant.iteration_ms),
        f"{baseline_ms / variant.iteration_ms:.3f}x", ms(variant.compute_ms), ms(variant.comm_ms),
        ms(variant.exposed_comm_ms), f"{variant.hidden_comm_fraction:.0%}", ms(variant.idle_ms),
        f"{variant.peak_memory_gib:.1f} GiB", percent(variant.fits_chance),
        f"{variant.tokens_per_second_per_gpu:,.0f}", f"{variant.tflops_per_gpu:,.0f}",
        share(variant.mfu),
    )  # fmt: skip


def _memory_line(result: Simulated) -> str:
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in result.memory_gib.items() if gib)
    chance = percent(result.fits_chance)
    verdict = f"fits: {chance}" if result.fits else f"it does not fit ({chance})"
    return (
        f"Memory of the chosen plan, GiB a GPU: {parts}: {result.peak_memory_gib:.1f} allocated, "
        f"about {result.usable_memory.reserved_gib:.1f} reserved; {verdict}."
    )


def _power_line(result: Simulated) -> tuple[str, ...]:
    if result.clock_mhz is None:
        return ()
    baseline = result.variants["baseline"]
    return (
        f"Clock {result.clock_mhz:,} MHz (baseline {baseline.clock_mhz:,}), as power allows; "
        f"{result.power_w:,.0f} W a GPU (baseline {baseline.power_w:,.0f}); "
        f"{result.joules_per_token:.3g} J a token.",
    )


def _confidence_line(result: Simulated) -> str:
    interval = result.interval_ms
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in result.confidence_shares.items())
    return (
        f"Confidence {result.confidence}: {interval.low:,.0f}–{interval.high:,.0f} ms; "
        f"time by source of lookup: {shares}."
    )
