"""Result of simulate: a plan beside the baseline and the bound; its memory, pipeline, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Final

from domino_tune.base.tables import Table
from domino_tune.results import HIDDEN, LabelledPlan, made_of
from domino_tune.results.drawn import drawn_layer
from domino_tune.results.shown import Shown, cost_line, frame, ms, named, share, workload_line
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from simulator.case import Case, Cost
from simulator.dtypes import GIB
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.schedule import Timeline
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.usable import SURE, Usable, percent

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class TakenMemory:
    """Memory that no tensor can have: what has it, GiB, and how that is known."""

    what: str
    gib: float
    source: str


@dataclass(frozen=True, kw_only=True)
class UsableMemory:
    """GiB of a GPU. ``usable_gib``: what is left of ``gpu_gib`` after ``taken``.

    ``recommended_gib``: the largest predicted peak that fits with a chance of 80 %.
    ``reserved_gib``: what PyTorch's allocator is expected to reserve for the chosen plan's peak.
    Each source begins with how the number is known: measured, reported, nominal, counted, assumed
    or asked for.
    """

    gpu_gib: float
    source: str
    taken: tuple[TakenMemory, ...]
    usable_gib: float
    recommended_gib: float
    reserved_gib: float
    reserved_source: str

    @classmethod
    def of(cls, memory: Usable, peak_bytes: int) -> UsableMemory:
        """Return what is usable, and what a peak reserves of it."""
        return cls(
            gpu_gib=memory.total / GIB,
            source=memory.total_source,
            taken=tuple(
                TakenMemory(what=one.what, gib=one.size / GIB, source=one.source)
                for one in memory.taken
            ),
            usable_gib=memory.usable_bytes / GIB,
            recommended_gib=memory.sure_bytes / GIB,
            reserved_gib=memory.reserved_bytes(peak_bytes) / GIB,
            reserved_source=memory.fragments.source,
        )

    @property
    def text(self) -> str:
        """How the usable memory comes about, in one line."""
        less = "".join(f" − {one.gib:.1f} {one.what}" for one in self.taken)
        kind = self.source.partition(":")[0]
        return (
            f"Usable: {self.gpu_gib:.1f} GiB ({kind}){less} = {self.usable_gib:.1f} GiB; peaks up "
            f"to {self.recommended_gib:.1f} GiB are recommended."
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage's times in ms. ``layers``: of each of its virtual stages; ``exposed_comm_ms``:
    exposed collectives; ``p2p_wait_ms``: waits for messages; ``bubble_ms``: waits for other stages.
    """

    layers: tuple[int, ...]
    compute_ms: float
    exposed_comm_ms: float
    p2p_wait_ms: float
    bubble_ms: float

    @property
    def waits_ms(self) -> float:
        """All waits for other stages and their messages."""
        return self.p2p_wait_ms + self.bubble_ms


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The chosen plan's pipeline. ``message_mib``, ``message_ms``: size of the message that one
    stage sends the next for a micro-batch, and the longest time of one. ``busiest_stage`` counts
    from 0."""

    schedule: str
    busiest_stage: int
    message_mib: float
    message_ms: float
    stages: tuple[Stage, ...]

    @property
    def busiest(self) -> Stage:
        """The stage with the most work, which the table of variants describes."""
        return self.stages[self.busiest_stage]


def stages_table(pipeline: Pipeline, memory_gib: Sequence[float]) -> Table:
    """Return one row per stage of the chosen plan's pipeline."""
    rows = [
        (
            str(number), "+".join(map(str, stage.layers)), ms(stage.compute_ms),
            ms(stage.exposed_comm_ms), ms(stage.p2p_wait_ms), ms(stage.bubble_ms),
            f"{held:.1f} GiB",
        )
        for number, (stage, held) in enumerate(
            zip(pipeline.stages, memory_gib, strict=True)
        )
    ]  # fmt: skip
    return Table(
        title=f"Stages of the chosen plan, {pipeline.schedule}",
        columns=("stage", ">layers", ">compute", ">exposed", ">p2p", ">bubble", ">memory"),
        rows=rows,
        marked=(pipeline.busiest_stage,),
        notes=(
            f"A message is {pipeline.message_mib:.1f} MiB and takes at most "
            f"{pipeline.message_ms:.2f} ms.",
        ),
    )


# The verdict --------------------------------------------------------------------------------------
# Which strategy is the fastest, by how much, and how sure that is.

CLEAR: Final = 0.6
"""Lowest chance at which a strategy is called the fastest."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A strategy's plan; speed-ups are over the baseline. ``name``: the strategy's, for use in a
    sentence.

    ``low``, ``high``: the 10th and the 90th percentile of the speed-up over the machine draws.
    ``chance``: the share of draws in which no other plan that is sure enough to fit
    (``fits_chance``, 80 % or more) is faster. ``runs_in``: the frameworks that have the strategy.
    """

    strategy: str
    name: str
    plan: LabelledPlan
    iteration_ms: float
    speedup: float
    low: float
    high: float
    chance: float
    fits: bool
    fits_chance: float
    runs_in: str

    @property
    def recommended(self) -> bool:
        """Whether the plan is sure enough to fit a GPU."""
        return self.fits_chance >= SURE


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The contestants, baseline first, compared on ``draws`` machines within the profile's errors.

    ``text``: the answer in words. ``unsure``: how much each family of errors moves the chosen
    plan's speed-up, as a relative standard error, the largest first. ``seed``: of the draws.
    """

    text: str
    contestants: tuple[Contestant, ...]
    draws: int
    seed: int
    unsure: dict[str, float]

    @property
    def leader(self) -> Contestant | None:
        """Return the strategy that is sure enough to fit and is most often the fastest; None if no
        strategy is sure enough."""
        return max((one for one in self.contestants if one.recommended), key=_chance, default=None)

    def table(self) -> Table:
        """Return one row per contestant."""
        worst = [f"{family} {error:.1%}" for family, error in list(self.unsure.items())[:3]]
        return Table(
            title=self.text,
            columns=(
                "strategy", "plan", ">iteration", ">speedup", ">80 % of draws", ">fastest",
                "runs in",
            ),
            rows=[_row(one) for one in self.contestants],
            marked=tuple(i for i, one in enumerate(self.contestants) if one is self.leader),
            notes=(
                f"{self.draws:,} machines drawn from the profile's errors; what makes the "
                "speed-up unsure: "
                f"{', '.join(worst) or 'nothing'}.",
            ),
            narrow=("runs in", "plan", "iteration"),
            below="plan",
        )  # fmt: skip


def _chance(one: Contestant) -> float:
    return one.chance


def _row(one: Contestant) -> tuple[str, ...]:
    chance = f"{one.chance:.0%}" if one.recommended else fits_words(one)
    return (
        one.name, named(one.plan), ms(one.iteration_ms), f"{one.speedup:.3f}x",
        f"{one.low:.2f}–{one.high:.2f}", chance, one.runs_in,
    )  # fmt: skip


def fits_words(one: Contestant) -> str:
    """Return why a plan is not recommended because of its memory."""
    return f"fits: {percent(one.fits_chance)}" if one.fits else "does not fit"


BASELINE: Final = "baseline"
BASELINE_NO_SP: Final = "baseline_no_sp"
CHOSEN: Final = "chosen"
BOUND: Final = "no_comm"
"""Names of variants."""


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
class Prediction:
    """A plan on one machine, beside the baseline (Megatron) and the bound (no communication).

    ``speedup`` is baseline_ms / iteration_ms. The baseline has sequence parallelism wherever that
    is possible; ``baseline_no_sp_ms`` and ``speedup_no_sp`` are those of Megatron without it, None
    if that is impossible (a warning says why).

    ``fits`` and ``fits_chance`` are the chosen plan's, ``usable_memory`` is the memory that it must
    fit in. ``interval_ms`` holds the iteration on 80 % of the machines that are drawn from the
    profile's errors. ``confidence`` is high, medium or low.
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
    interval_ms: Interval
    confidence: str
    warnings: tuple[str, ...]
    plan: LabelledPlan
    workload: Workload
    cluster: ClusterSpec
    variants: dict[str, Variant]


@dataclass(frozen=True, kw_only=True)
class Simulated(Prediction, Shown):
    """A prediction with all that is told of one plan.

    ``confidence_shares``: share of the time by the source of its look-ups. ``verdict``: a
    comparison of the strategies, and how sure it is; None if it was not asked for. ``cost``: None
    without a price of a GPU hour. ``bubble_ms``: how long the busiest stage of a pipeline waits for
    others. ``pipeline`` is None without one; ``stage_memory_gib``: the peak of each stage.
    """

    cost: Cost | None
    confidence_shares: dict[str, float]
    profile: ProfileRef
    model: ModelSpec
    bubble_ms: float
    pipeline: Pipeline | None
    stage_memory_gib: tuple[float, ...]
    time_by_role_ms: dict[str, float]
    verdict: Verdict | None

    @property
    def prediction(self) -> Prediction:
        """What differs from machine to machine."""
        return made_of(Prediction, self)

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
                _variant_row(self._named(name), variant, self.baseline_ms)
                for name, variant in self.variants.items()
            ],
            marked=(list(self.variants).index(CHOSEN),),
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

    def _named(self, variant: str) -> str:
        """Return the name of a variant in tables: that of the chosen plan's strategy where the
        verdict recommends another."""
        if variant != CHOSEN or self.verdict is None:
            return NAMES.get(variant, variant)
        leader = self.verdict.leader
        if leader is None or leader.plan == self.plan:
            return variant
        own = (one.name for one in self.verdict.contestants if one.plan == self.plan)
        return next(own, variant)

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

    def drawn(self, columns: int = 86) -> str:
        """Return the forward pass of one layer of the chosen plan, as ``drawn_layer`` does."""
        return drawn_layer(self.timelines[CHOSEN], columns)

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


NAMES: Final = {BOUND: "bound", BASELINE_NO_SP: "no SP"}
"""Names of variants in tables, if they differ."""


def _variant_row(name: str, variant: Variant, baseline_ms: float) -> tuple[str, ...]:
    return (
        name, variant.label, ms(variant.iteration_ms),
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
        f"Memory of {result.plan.label}, GiB a GPU: {parts}: "
        f"{result.peak_memory_gib:.1f} allocated, "
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
        f"Confidence {result.confidence}: {interval.low:,.0f}–{interval.high:,.0f} ms on 80% of "
        f"drawn machines; time by source of lookup: {shares}."
    )
