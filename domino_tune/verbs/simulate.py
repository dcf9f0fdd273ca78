"""simulate: one plan beside the baselines and the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

from domino_tune.base.cores import Ahead, Beside, in_turn, later
from domino_tune.requests import SimulateRequest
from domino_tune.results.simulate import (
    BASELINE,
    BASELINE_NO_SP,
    BOUND,
    CHOSEN,
    Interval,
    Pipeline,
    Simulated,
    SimulateResult,
    Stage,
    UsableMemory,
    Variant,
    Verdict,
)
from domino_tune.search.simulated import rival_plans
from domino_tune.store.plans import PlanFile, ProfileRef
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.machines import Machines, machines_of
from domino_tune.verbs.resolve import (
    Chosen,
    baseline_no_sp,
    baseline_plan,
    plan_of,
    read_plan_file,
    resolve,
)
from domino_tune.verbs.verdict import Rivals, compared
from simulator.case import Case
from simulator.clock import Played
from simulator.compiler import Repriced, record
from simulator.confidence import Confidence, confidence_of, unknowns_of
from simulator.cost import CostModel
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError, InputError
from simulator.greedy import order_of
from simulator.memory import Memory, peak_bytes, stage_memory
from simulator.model_flops import flops_per_gpu, mfu
from simulator.plan import NO_COMM, SlicePlan
from simulator.predict import (
    PlayedPipeline,
    iteration_ns,
    played,
    played_pipeline,
    plays_of,
)
from simulator.schedule import Timeline
from simulator.sharding import least_micros
from simulator.usable import SURE, percent

LEAST_SHARE: Final = 0.005
"""What widens an interval by less is not told."""
LEAST_RISE: Final = 0.02
"""Rise of the iteration time from which on it is told that a fused loss is assumed."""
MICROS_PLAYED: Final = 4
"""Micro-batches of a timeline: the first, two from the middle, and the last."""


class Timelines(Mapping[str, Timeline]):
    """Timelines by name, each played at its first use: most callers use none."""

    def __init__(self, played: Mapping[str, Callable[[], Timeline]]) -> None:
        self._played = {name: cache(play_it) for name, play_it in played.items()}

    def __getitem__(self, name: str) -> Timeline:
        """Return the timeline of that name."""
        return self._played[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._played)

    def __len__(self) -> int:
        return len(self._played)


def simulate(
    request: SimulateRequest, *, plan_file: PlanFile | None = None, shelf: Shelf = DISK,
    beside: Beside = later,
) -> SimulateResult:  # fmt: skip
    """Predict one plan beside the baseline and the bound; replay the order of a plan file.

    ``plan_file`` is used in place of the request's plan file; names are looked up on ``shelf``.
    ``beside``: how rivals are tuned.
    """
    plan_file = plan_file or read_plan_file(request)
    case = resolve(request, plan_file, shelf)
    plan = plan_of(request, plan_file, case)
    order = plan_file.order if plan_file else None
    rivals = beside(partial(rival_plans, case))
    chosen = Chosen.of(case, plan, order)
    return simulate_plan(case, chosen, judged=in_turn, rivals=rivals)


def simulate_plan(
    case: Case, chosen: Chosen, *, judged: Ahead | None = None, rivals: Rivals | None = None
) -> SimulateResult:
    """Predict the variants; timelines show at most MICROS_PLAYED micro-batches.

    ``judged``: also give the verdict over all strategies, computed in this way; ``rivals``: their
    plans, where they are tuned already. A plan that does not fit a GPU is an answer (``fits``), and
    so is such a baseline.
    """
    (plans, left_out), few = _plans(case, chosen), shortened(case)
    rows = {name: _row(case, one, few) for name, one in plans.items()}
    variants, shown = {name: row.variant for name, row in rows.items()}, rows[CHOSEN]
    mine, memory, run = shown.variant, shown.memory, shown.run
    timeline = record(shown.plays, run.cost)
    confidence, pipeline = confidence_of(timeline, run.cost), _pipeline(case, shown.piped)
    verdict, machines = _judged(case, chosen, run.totals.makespan_ns, judged, rivals)
    low_ns, high_ns = machines.interval_ns(chosen.plan.strategy)
    waits_ms = pipeline.busiest.waits_ms if pipeline else 0.0
    more = (mine.iteration_ms - waits_ms) / timeline.makespan_ns
    return SimulateResult(
        **_of_chosen(mine),
        **_compared(variants, plain_is_left_out=bool(left_out)),
        usable_memory=UsableMemory.of(case.memory, max(map(sum, memory))),
        cost=case.priced(mine.iteration_ms),
        interval_ms=Interval(low=low_ns * MS_PER_NS, high=high_ns * MS_PER_NS),
        confidence=confidence.level,
        confidence_shares=confidence.shares,
        warnings=(
            *_warnings(case, confidence, mine, variants[BASELINE]),
            *_wider_because(case, machines.longer(chosen.plan.strategy)),
            *_unsliced(case, chosen.plan),
            *left_out,
            *(_fused_loss(case, chosen, mine) if judged else ()),
        ),
        plan=chosen.plan,
        profile=ProfileRef.of(case.profile),
        model=case.model,
        workload=case.workload,
        cluster=case.cluster,
        bubble_ms=pipeline.busiest.bubble_ms if pipeline else 0.0,
        pipeline=pipeline,
        stage_memory_gib=tuple(sum(held) / GIB for held in memory),
        variants=variants,
        time_by_role_ms={role: time_ns * more for role, time_ns in timeline.by_role.items()},
        verdict=verdict,
        plans={name: one.plan for name, one in plans.items()},
        timelines=Timelines(
            {name: partial(_played, row.plays, row.run.cost) for name, row in rows.items()}
        ),
        order=chosen.order,
        case=case,
    )


class _Row(NamedTuple):
    """A plan's run at its clock, what its timeline is played from, each stage's memory at its peak,
    the numbers of it, and its pipeline."""

    run: Played
    plays: Repriced
    memory: tuple[Memory, ...]
    variant: Variant
    piped: PlayedPipeline | None


def _row(case: Case, one: Chosen, few: Case) -> _Row:
    """Return what is shown of a plan; ``few``: the case with the micro-batches of a timeline."""
    memory = stage_memory(case, one.plan, one.order)
    piped = played_pipeline(case, one.plan, one.order) if case.cluster.pp > 1 else None
    run = piped.busiest if piped else played(case, one.plan, one.order)
    plays = run.plays if few is case else plays_of(few, one.plan, one.order, run.cost)
    return _Row(
        run, plays, memory, _variant(case, one.plan.label, run, max(memory, key=sum)), piped
    )


def _compared(variants: Mapping[str, Variant], *, plain_is_left_out: bool) -> dict[str, Any]:
    """Return the fields of a result that compare the chosen plan with the others."""
    mine_ms, baseline = variants[CHOSEN].iteration_ms, variants[BASELINE]
    no_sp = variants.get(BASELINE_NO_SP, None if plain_is_left_out else baseline)
    return {
        "baseline_ms": baseline.iteration_ms,
        "no_comm_ms": variants[BOUND].iteration_ms,
        "speedup": baseline.iteration_ms / mine_ms,
        "baseline_no_sp_ms": no_sp.iteration_ms if no_sp else None,
        "speedup_no_sp": no_sp.iteration_ms / mine_ms if no_sp else None,
    }


def _fused_loss(case: Case, chosen: Chosen, mine: Variant) -> list[str]:
    """Return a note on the loss that ``megatron-te`` is taken to have, where the other takes much
    longer and nobody said which it is."""
    how = case.workload.implementation
    if not case.loss_assumed or how.name != "megatron-te":
        return []
    passes = replace(how, cross_entropy_loss_fusion=False)
    other = case.training(replace(case.workload, implementation=passes))
    ms = iteration_ns(other, chosen.plan, chosen.order) * MS_PER_NS
    rise = ms / mine.iteration_ms - 1
    if rise < LEAST_RISE:
        return []
    return [
        "The loss is assumed to be one kernel of TransformerEngine, as in recipes of NeMo and "
        f"Megatron-Bridge; with Megatron-LM's default this takes {ms:,.1f} ms, {rise:+.0%}. Set "
        "cross_entropy_loss_fusion=false of the implementation if that is yours, else true."
    ]


def _played(plays: Repriced, cost: CostModel) -> Timeline:
    from simulator.engine import play  # late: few timelines are drawn, and none needs SimPy else

    return play(plays.schedule, plays.program(cost))


def _plans(case: Case, chosen: Chosen) -> tuple[dict[str, Chosen], list[str]]:
    """Return the plans that are shown, and in words which of them cannot be made here."""
    plans = {BASELINE: Chosen.of(case, baseline_plan(case)), CHOSEN: chosen}
    left_out = []
    try:
        plain = Chosen.of(case, baseline_no_sp(case))
        case.shapes(plain.plan)
        if plain != plans[BASELINE]:
            plans = {BASELINE: plans[BASELINE], BASELINE_NO_SP: plain, CHOSEN: chosen}
    except InfeasiblePlanError as error:
        left_out.append(f"The baseline without sequence parallelism is left out: {error}")
    bound = replace(NO_COMM, sequence_parallel=chosen.plan.sequence_parallel)
    return {**plans, BOUND: Chosen.of(case, bound)}, left_out


def micros_shown(pp: int, vpp: int) -> int:
    """Return how many micro-batches are drawn at most: MICROS_PLAYED, or with virtual stages, which
    need a multiple of the stages, the next of these."""
    step = pp if vpp > 1 else 1
    return math.ceil(MICROS_PLAYED / step) * step


def shortened(case: Case) -> Case:
    """Return the case with about MICROS_PLAYED micro-batches: those in the middle are alike."""
    workload = case.workload
    few = micros_shown(case.cluster.pp, case.cluster.vpp)
    least = max(few, least_micros(workload, case.cluster))
    if workload.grad_accumulation <= least:
        return case
    return replace(case, workload=replace(workload, grad_accumulation=least))


def _of_chosen(mine: Variant) -> dict[str, Any]:
    """Return the fields that a result has of its chosen plan's variant."""
    names = Variant.__dataclass_fields__.keys() & Simulated.__dataclass_fields__.keys()
    return {name: getattr(mine, name) for name in names}


def _judged(
    case: Case, chosen: Chosen, makespan_ns: int, judged: Ahead | None, rivals: Rivals | None
) -> tuple[Verdict | None, Machines]:
    """Return the verdict, if it is asked for, and the drawn machines of the chosen plan, which are
    the same either way."""
    strategy, verdict = chosen.plan.strategy, None
    if judged:
        verdict, machines = compared(case, chosen, judged, rivals)
        if strategy in machines.plans:
            return verdict, machines
    return verdict, machines_of(case, {strategy: chosen}, {strategy: makespan_ns})


def _wider_because(case: Case, longer: Mapping[str, float]) -> list[str]:
    """Return why the interval reaches further up than errors of look-ups say. ``longer``: the share
    that each unknown may add."""
    return [
        f"The interval is wider, up to {longer[one.name]:+.0%}, because {one.why}."
        for one in unknowns_of(case)
        if longer.get(one.name, 0.0) >= LEAST_SHARE
    ]


def _pipeline(case: Case, run: PlayedPipeline | None) -> Pipeline | None:
    """Return where the stages' time goes; None without a pipeline."""
    if run is None:
        return None
    pieces = run.builder.pieces
    stages = tuple(
        Stage(
            layers=tuple(chunk.layers for chunk in pieces.ranks[rank]),
            compute_ms=times.compute_ns * MS_PER_NS,
            exposed_comm_ms=(times.exposed_ns - times.messages_ns) * MS_PER_NS,
            p2p_wait_ms=times.messages_ns * MS_PER_NS,
            bubble_ms=times.bubble_ns * MS_PER_NS,
        )
        for rank, times in enumerate(run.ranks)
    )
    message = max(message.duration_ns for message in run.program.messages)
    return Pipeline(
        schedule=case.workload.pp_schedule,
        busiest_stage=case.busiest_rank,
        message_mib=pieces.message_bytes / 2**20,
        message_ms=message * MS_PER_NS,
        stages=stages,
    )


def _variant(case: Case, label: str, run: Played, peak: Memory) -> Variant:
    """Return the numbers of the whole iteration, which equal the full timeline's to the ns."""
    sums, power = run.totals, None if case.factors.of_gpu else run.power
    tokens_per_s = case.tokens / (sums.makespan_ns * 1e-9)
    hidden = 1.0 - sums.exposed_ns / sums.comm_ns if sums.comm_ns else 1.0
    return Variant(
        label=label,
        iteration_ms=sums.makespan_ns * MS_PER_NS,
        compute_ms=sums.compute_ns * MS_PER_NS,
        comm_ms=sums.comm_ns * MS_PER_NS,
        exposed_comm_ms=sums.exposed_ns * MS_PER_NS,
        idle_ms=(sums.makespan_ns - sums.compute_ns - sums.exposed_ns) * MS_PER_NS,
        hidden_comm_fraction=hidden,
        peak_memory_gib=sum(peak) / GIB,
        memory_gib={
            name: size / GIB
            for name, size in peak._asdict().items()
            if name != "experts" or case.model.num_experts
        },
        fits=sum(peak) <= case.memory.usable_bytes,
        fits_chance=case.memory.chance(sum(peak)),
        tokens_per_second=tokens_per_s,
        tokens_per_second_per_gpu=tokens_per_s / case.cluster.world_size,
        tflops_per_gpu=flops_per_gpu(case, sums.makespan_ns) * 1e-12,
        mfu=mfu(case, sums.makespan_ns),
        clock_mhz=power.clock_mhz if power else None,
        power_w=power.passes_w if power else None,
        joules_per_token=power.energy_j * case.cluster.world_size / case.tokens if power else None,
    )


def _too_large(case: Case, mine: Variant, baseline: Variant) -> list[str]:
    """Return a warning where the chosen plan or the baseline may not fit a GPU."""
    found, memory = [], case.memory
    usable = f"{memory.usable_bytes / GIB:,.1f} GiB"
    if not mine.fits:
        found.append(
            f"{mine.label} needs {mine.peak_memory_gib:,.1f} GiB at its peak, but of "
            f"{case.profile.machine.gpu} {usable} are usable: it could not run."
        )
    elif mine.fits_chance < SURE:
        found.append(
            f"{mine.label} needs {mine.peak_memory_gib:,.1f} of {usable} at its peak and fits with "
            f"a chance of {percent(mine.fits_chance)}, so it is not recommended; up to "
            f"{memory.sure_bytes / GIB:,.1f} GiB are. PyTorch leaves fewer fragments under "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    if not baseline.fits:
        found.append(
            f"The baseline would need {baseline.peak_memory_gib:,.1f} GiB, more than the {usable} "
            "that are usable: it could not run."
        )
    elif baseline.fits_chance < SURE and mine.label != baseline.label:
        found.append(f"The baseline fits with a chance of {percent(baseline.fits_chance)}.")
    return found


def _another_gpu(case: Case) -> list[str]:
    """Return a warning where a what-if makes another GPU of the profile's."""
    if case.power is None or not case.factors.of_gpu:
        return []
    return [
        "Clock, power and energy are not told: the profile's law of power is not of a GPU with "
        "other rates."
    ]


def _shown_in_part(case: Case) -> list[str]:
    """Return what traces and pages leave out."""
    micros, shown = case.workload.grad_accumulation, shortened(case).workload.grad_accumulation
    found = []
    if case.cluster.pp > 1:
        found.append(
            "Trace and page show the passes of the pipeline's busiest rank, one behind the other."
        )
    if micros > shown:
        found.append(
            f"Trace and page show {shown} of {micros} micro-batches; the numbers are of the whole "
            "iteration."
        )
    return found


def _above_cap(case: Case, variants: Sequence[Variant]) -> list[str]:
    """Return a warning where the lowest clock does not keep the cap."""
    law = case.power
    above = [one for one in variants if law and one.power_w and one.power_w > law.cap_w]
    if law is None or not above:
        return []
    return [
        f"The cap of {law.cap_w:,.0f} W cannot be kept: {above[0].label} draws "
        f"{above[0].power_w:,.0f} W at {above[0].clock_mhz:,} MHz, the lowest clock that is looked "
        "at. Raise --power-cap."
    ]


def _unsliced(case: Case, plan: SlicePlan) -> list[str]:
    """Return a warning where a plan of Domino slices nothing, as with one sequence a batch."""
    if plan.strategy != "domino" or plan.slices != (1, 1, 1, 1, 1):
        return []
    ways = "give --col-slices" + " or --slice-dim sequence" * case.can_slice_sequences
    return [f"{plan.label} slices nothing, so it hides little; {ways}, or let `tune` choose."]


def _warnings(
    case: Case, confidence: Confidence, mine: Variant, baseline: Variant
) -> tuple[str, ...]:
    found = [*case.notes, *confidence.warnings, *_above_cap(case, (mine, baseline))]
    found += _another_gpu(case)
    if case.profile.contention is None:
        found.append(
            f"Profile {case.profile.name!r} has no contention section: overlap is simulated "
            "without slowdowns, which favours too many slices."
        )
    if mine.label != baseline.label and mine.iteration_ms >= baseline.iteration_ms:
        what = "Domino" if mine.label.startswith("domino") else "it"
        found.append(f"Do not use {what} here: {mine.label} is not faster than {baseline.label}.")
    found += _too_large(case, mine, baseline)
    found += _shown_in_part(case)
    if confidence.level == "low":
        unsure = sum(confidence.shares.get(source, 0.0) for source in ("extrapolated", "assumed"))
        found.append(f"Low confidence: {unsure:.0%} of the time was extrapolated or assumed.")
    return tuple(found)


def recommended(best: Simulated, target: str | None = None) -> str:
    """Return the strategy that the verdict recommends; that of the chosen plan without a verdict,
    or if only plans for ``target`` were asked for."""
    leader = best.verdict.leader if best.verdict and not target else None
    return leader.strategy if leader else best.plan.strategy


def strategies_of(best: Simulated) -> tuple[str, ...]:
    """Return the strategies whose plans an answer has, the chosen plan's first."""
    compared = (one.strategy for one in best.verdict.contestants) if best.verdict else ()
    return tuple(dict.fromkeys((best.plan.strategy, *compared)))


def check_has(best: Simulated, strategy: str) -> None:
    """Raise InputError if the answer has no plan of ``strategy``."""
    if strategy not in strategies_of(best):
        raise InputError(
            f"No plan of strategy {strategy!r} is compared here, so --out-of cannot write one; "
            f"there are those of {', '.join(strategies_of(best))}."
        )


def plan_file_of(result: SimulateResult, strategy: str) -> PlanFile:
    """Return the plan file of a strategy. Raise InputError if it was not compared."""
    check_has(result, strategy)
    if strategy == result.plan.strategy:
        return result.plan_file
    assert result.verdict is not None
    one = next(one for one in result.verdict.contestants if one.strategy == strategy)
    order, file = order_of(result.case, one.plan), result.plan_file
    peak_gib = peak_bytes(result.case, one.plan, order) / GIB
    told = replace(file.predicted, iteration_ms=one.iteration_ms, peak_memory_gib=peak_gib)
    return replace(file, plan=one.plan, order=order, predicted=told)
