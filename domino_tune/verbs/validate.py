"""validate: run plans, baseline and bound on real ranks; compare with predictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from domino_tune.base.errors import RunError, ToleranceError
from domino_tune.base.progress import Progress, no_progress
from domino_tune.base.units import half_spread, median_interval
from domino_tune.requests import ValidateRequest
from domino_tune.results.measured import Iteration, RoleTimes, ValidatedPlan, ValidateResult
from domino_tune.results.simulate import BASELINE, BOUND, Interval
from domino_tune.runtime.lanes import PaceRow, paces_of
from domino_tune.runtime.launch.launch import check_ready
from domino_tune.runtime.launch_spec import LaunchSpec, check_own_strategy
from domino_tune.runtime.plan_runs import Measured, Runs, graph_notes, loss_problems
from domino_tune.store.plans import PlanFile, ProfileRef, load_plan
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.ranks import (
    check_comm_ctas,
    check_machine,
    check_predicted_here,
    check_runnable,
    kernel_notes,
    launch_spec,
    patient,
    with_own_kernels,
)
from domino_tune.verbs.resolve import baseline_plan
from simulator.case import Case
from simulator.clock import Played
from simulator.cost import CostModel, Factors
from simulator.dtypes import GIB, MS_PER_NS
from simulator.engine import play
from simulator.errors import InfeasiblePlanError, InputError
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.memory import peak_bytes
from simulator.plan import NO_COMM, SlicePlan
from simulator.predict import played, plays_of
from simulator.profile import Profile
from simulator.schedule import COMPUTE, Timeline

# The machine that plans run on, as it is ----------------------------------------------------------
# With emulated collectives, and as fast as it is now.

LEAST_NS: Final = 10_000
"""Times of shorter ops do not show the speed: clock and interpreter are too large a part."""


@dataclass(frozen=True, kw_only=True)
class PlanToRun:
    """A plan to run, its issue order, and its name in tables and traces."""

    name: str
    plan: SlicePlan
    order: LayerOrder


def as_emulated(case: Case, spec: LaunchSpec) -> Case:
    """Return the case of a single rank: nobody to wait for, collectives that take as long behind
    each other, and on CPU no contention, as collectives wait."""
    skew = case.profile.skew
    if skew is not None:
        skew = replace(
            skew, fit=replace(skew.fit, slowest_factor=1.0, rows=(), beside=(), error=0.0)
        )
    collectives = case.profile.collectives
    if collectives is not None:
        collectives = replace(collectives, idle_lane=None)
    alone = replace(case.profile, skew=skew, collectives=collectives)
    return replace(
        case, profile=replace(alone, contention=None) if spec.backend == "gloo" else alone
    )


def at_speed(case: Case, one: PlanToRun, run: Played, speed: float) -> Timeline:
    """Return the timeline of a machine whose compute has ``speed``, at the predicted clock."""
    now = replace(case, factors=Factors(compute_speed=speed))
    cost = now.cost_at(run.power.clock_mhz if run.power else None)
    plays = plays_of(now, one.plan, one.order, cost)
    return play(plays.schedule, plays.program(cost))


def plan_paces(
    cost: CostModel, plans: Sequence[SlicePlan], timelines: Sequence[Timeline]
) -> list[PaceRow]:
    """Return the times that the collectives of ``plans`` take alone, by the profile."""
    schedules = [
        (plan.comm_ctas, timeline.schedule) for plan, timeline in zip(plans, timelines, strict=True)
    ]
    return paces_of(cost, schedules)


def present_speed(cost: CostModel, bound: Measured) -> float | None:
    """Return the machine's speed relative to its profile; None without the bound's timeline.

    It is the median over the bound's compute ops of profiled over measured duration. Both are
    medians of single ops, so what a step takes beyond them (``step_excess``) is taken out.
    """
    if bound.timeline is None or bound.typical_ns is None:
        return None
    pairs = [
        (cost.duration_ns(op.signature), measured_ns)
        for op, measured_ns in zip(bound.timeline.ops, bound.typical_ns, strict=True)
        if op.lane == COMPUTE and measured_ns > 0
    ]
    long = [pair for pair in pairs if pair[1] >= LEAST_NS] or pairs
    beyond = 1.0 + cost.cpu.skew.step_excess if cost.cpu.skew else 1.0
    return statistics.median(profiled / measured for profiled, measured in long) / beyond


# validate -----------------------------------------------------------------------------------------

INTERVAL_ROUNDS: Final = 6
"""Fewer rounds give no interval of 95 %."""
LARGE_SPREAD: Final = 0.05
"""Half of the interquartile range of a plan's iterations, over their median."""
OTHER_SPEED: Final = 0.1
"""How far from 1 the speed of compute, relative to its profile, is told."""


@dataclass(frozen=True, kw_only=True)
class PlanTimelines:
    """One plan's timelines: predicted, at present speed, and measured."""

    candidate: PlanToRun
    predicted: Timeline
    present: Timeline | None
    measured: Measured


def validate(request: ValidateRequest, progress: Progress = no_progress) -> ValidateResult:
    """Run the request's plans, baseline and bound in turn; compare with predictions.

    Ctrl-C ends the runs: the result has the rounds until then (``interrupted``). Raise InputError
    for plans of different cases or another machine's profile, RunError when a rank dies or hangs.
    """
    limit = parse_percent("--max-error", request.max_error) if request.max_error else None
    files = _plan_files(request.plan)
    case = _case_of(files, request.profile)
    check_runnable(
        case.model, case.cluster.tp, "Make the plan again with --set attention_dropout=0."
    )
    check_predicted_here(case, "Make the plan again")
    single_rank = request.emulate_collectives
    spec = launch_spec(request, tp=case.cluster.tp, dp=case.cluster.dp, single_rank=single_rank)
    check_ready(spec)
    differing = check_machine(case, spec, force=request.force)
    check_comm_ctas((one.plan.comm_ctas for one in files.values()), spec.backend)
    reference, case = ProfileRef.of(case.profile), as_emulated(case, spec) if single_rank else case
    candidates = _candidates(case, files)
    predicted = [played(case, one.plan, one.order) for one in candidates]
    timelines = [play(run.schedule, run.program) for run in predicted]
    plans = [one.plan for one in candidates]
    paces = plan_paces(predicted[0].cost, plans, timelines) if single_rank else None
    runs = Runs(
        model=case.model, workload=case.workload, cluster=case.cluster,
        plans=[(one.plan, one.order) for one in candidates], rounds=request.rounds,
        paces=paces,
    )  # fmt: skip
    longest_ns = max(run.totals.makespan_ns for run in predicted)
    interrupted = _run(runs, patient(spec, longest_ns), progress)
    measured = runs.measured()
    speed = present_speed(predicted[1].cost, measured[1])
    compared = [
        PlanTimelines(
            candidate=one, predicted=drawn, measured=found,
            present=at_speed(case, one, run, speed) if speed else None,
        )
        for one, run, drawn, found in zip(candidates, predicted, timelines, measured, strict=True)
    ]  # fmt: skip
    return ValidateResult(
        plans=tuple(_validated(case, one, compared[0]) for one in compared),
        max_error=limit,
        present_speed=speed,
        profile=reference,
        machine_differences=tuple(differing),
        warnings=tuple(
            _warnings(case, request, differing, measured) + disturbances(measured, speed)
        ),
        rounds=request.rounds,
        interrupted=interrupted,
        emulated_collectives=single_rank,
        backend=spec.backend,
        emulate_link_bits_per_s=spec.emulate_link_bits_per_s,
        model=case.model,
        workload=case.workload,
        cluster=case.cluster,
        timelines=_timelines(compared),
    )


def checked(request: ValidateRequest, progress: Progress) -> ValidateResult:
    """Return what ``validate`` does; an error of ``check_result`` has it as a note, so that the
    measurement is not lost."""
    result = validate(request, progress)
    try:
        check_result(result)
    except BaseException as error:
        error.add_note(str(result))
        raise
    return result


def check_result(result: ValidateResult) -> None:
    """Raise if the result is interrupted, no plan ran, or an error is above ``max_error``."""
    if result.interrupted:
        raise KeyboardInterrupt
    given = result.plans[2:]
    if all(one.failed for one in given):
        names = ", ".join(f"{one.name} ({one.failed})" for one in given)
        raise InfeasiblePlanError(
            f"No plan could be run: {names}; lower micro_batch_size or seq_length, or raise tp.",
            reason="memory",
        )
    limit = result.max_error
    if limit is None:
        return
    off = [one for one in result.plans if one.error is not None and abs(one.error) > limit]
    if off:
        errors = ", ".join(f"{one.name} {one.error:+.1%}" for one in off)
        raise ToleranceError(
            f"Errors of predictions are above --max-error {100 * limit:g}%: {errors}; profile this "
            "machine again, or allow more."
        )


def parse_percent(name: str, text: str) -> float:
    """Return ``5%`` or ``5`` as 0.05. Raise InputError whose text begins with ``name``."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e6:
        raise InputError(f"{name} cannot be {text!r}; write percent, like 5%.")
    return value / 100


def _plan_files(paths: Sequence[str]) -> dict[str, PlanFile]:
    """Return plan files by their names, which are made distinct.

    Raise InputError that names the fields of model, workload and cluster in which they differ.
    """
    if not paths:
        raise InputError("Missing --plan: give one or more plan files of `tune --out`.")
    named: dict[str, PlanFile] = {}
    for path in paths:
        loaded = load_plan(path)
        check_own_strategy(loaded.plan)
        stem = Path(path).stem
        same = sum(name.partition("#")[0] == stem for name in (BASELINE, BOUND, *named))
        named[f"{stem}#{same + 1}" if same else stem] = loaded
        differing = _differing_fields(loaded, next(iter(named.values())))
        if differing:
            raise InputError(
                f"Plans must be of one model, workload and cluster, but {path} and {paths[0]} "
                f"differ in {', '.join(differing)}; validate them one by one."
            )
    return named


def _differing_fields(one: PlanFile, other: PlanFile) -> list[str]:
    found = []
    for part in ("model", "workload", "cluster"):
        mine, others = asdict(getattr(one, part)), asdict(getattr(other, part))
        found += [
            f"{part}.{name} ({value!r} and {others[name]!r})"
            for name, value in mine.items()
            if value != others[name] and (part, name) != ("model", "name")
        ]
    return found


def _case_of(files: dict[str, PlanFile], profile: str | None) -> Case:
    """Return the case of the plan files, on ``profile`` or on the one that the first names."""
    first = next(iter(files.values()))
    predicting = load_profile(profile or first.profile.name)
    notes = (*_profile_notes(files, predicting), *kernel_notes(first.workload))
    return Case(
        model=first.model, workload=with_own_kernels(first.workload), cluster=first.cluster,
        profile=predicting, notes=notes,
    )  # fmt: skip


def _profile_notes(files: dict[str, PlanFile], profile: Profile) -> list[str]:
    return [
        f"{name} was made on another profile ({one.profile.name}, {one.profile.content_id[:19]}…) "
        "than the one used here."
        for name, one in files.items()
        if one.profile.content_id != profile.content_id
    ]


def _candidates(case: Case, files: dict[str, PlanFile]) -> list[PlanToRun]:
    """Return baseline, bound, and the given plans with the orders of their files."""
    baseline = baseline_plan(case)
    bound = replace(NO_COMM, sequence_parallel=baseline.sequence_parallel)
    ours = [
        PlanToRun(name=name, plan=plan, order=order_of(case, plan))
        for name, plan in ((BASELINE, baseline), (BOUND, bound))
    ]
    return ours + [
        PlanToRun(name=name, plan=one.plan, order=one.order) for name, one in files.items()
    ]


def _run(runs: Runs, spec: LaunchSpec, progress: Progress) -> bool:
    """Return whether Ctrl-C ended the runs; raise KeyboardInterrupt before any measured step."""

    def step(plan: int, makespan_ns: int) -> None:
        label, done = runs.plans[plan][0].label, len(runs.steps[plan])
        progress(f"round {done} of {runs.rounds}: {label} {makespan_ns * MS_PER_NS:,.1f} ms")

    progress(f"starting {spec.world_size} ranks")
    try:
        runs.run(spec, step)
    except RunError as error:
        if runs.playing is None:
            raise
        raise RunError(f"While {runs.plans[runs.playing][0].label} ran: {error}") from error
    except KeyboardInterrupt:
        if not runs.steps:
            raise
        return True
    return False


def _validated(case: Case, one: PlanTimelines, baseline: PlanTimelines) -> ValidatedPlan:
    makespans = one.measured.makespans_ns
    measured = _measured(one.measured, baseline.measured) if makespans else None
    low, high = median_interval(makespans) if makespans else (0, 0)
    plan, order = one.candidate.plan, one.candidate.order
    return ValidatedPlan(
        name=one.candidate.name,
        plan=plan,
        predicted=_iteration(
            one.predicted.makespan_ns, baseline.predicted.makespan_ns, one.predicted,
            peak_bytes(case, plan, order),
        ),
        measured=measured,
        error=_error(one.predicted, one.measured),
        error_at_present_speed=_error(one.present, one.measured),
        interval_ms=Interval(low=low * MS_PER_NS, high=high * MS_PER_NS) if makespans else None,
        spread_ms=half_spread(makespans) * MS_PER_NS if makespans else None,
        loss=_finite(one.measured.losses[0]) if makespans else None,
        failed=one.measured.failed,
        makespans_ms=tuple(makespan * MS_PER_NS for makespan in makespans),
        roles=role_times(one.predicted, one.measured),
        captured=one.measured.captured,
        why_not_captured=one.measured.why_not_captured,
    )  # fmt: skip


def _measured(found: Measured, baseline: Measured) -> Iteration:
    reference = statistics.median(baseline.makespans_ns) if baseline.makespans_ns else None
    return _iteration(
        statistics.median(found.makespans_ns), reference, found.timeline, found.peak_bytes
    )


def _iteration(
    makespan_ns: float, baseline_ns: float | None, timeline: Timeline | None, peak: int | None
) -> Iteration:
    parts = timeline.breakdown if timeline else None
    return Iteration(
        iteration_ms=makespan_ns * MS_PER_NS,
        speedup=baseline_ns / makespan_ns if baseline_ns else None,
        comm_ms=parts.comm_ns * MS_PER_NS if parts else None,
        exposed_comm_ms=parts.exposed_comm_ns * MS_PER_NS if parts else None,
        hidden_comm_fraction=parts.hidden_comm_fraction if parts else None,
        peak_memory_gib=peak / GIB if peak is not None else None,
    )


def _error(predicted: Timeline | None, measured: Measured) -> float | None:
    if predicted is None or not measured.makespans_ns:
        return None
    return predicted.makespan_ns / statistics.median(measured.makespans_ns) - 1


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def role_times(predicted: Timeline, measured: Measured) -> tuple[RoleTimes, ...]:
    """Return predicted and typical measured time of each role, longest first; () if unmeasured."""
    if measured.typical_ns is None:
        return ()
    sums: dict[str, list[float]] = {}
    spans = zip(
        predicted.ops, predicted.start_ns, predicted.end_ns, measured.typical_ns, strict=True
    )
    for op, start, end, typical_ns in spans:
        total = sums.setdefault(op.role, [0, 0.0, 0.0])
        total[0] += 1
        total[1] += end - start
        total[2] += typical_ns
    found = [
        RoleTimes(
            role=role,
            count=int(count),
            predicted_ms=expected_ns * MS_PER_NS,
            measured_ms=typical_ns * MS_PER_NS,
            ratio=typical_ns / expected_ns if expected_ns else None,
        )
        for role, (count, expected_ns, typical_ns) in sums.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.measured_ms, row.role)))


def _warnings(
    case: Case, request: ValidateRequest, differing: list[str], measured: Sequence[Measured]
) -> list[str]:
    found = list(case.notes)
    if differing:
        found.append(f"The profile is of another machine: {'; '.join(differing)}.")
    if case.cluster.cuda_graph:
        found += graph_notes(measured)
    if request.rounds < INTERVAL_ROUNDS:
        found.append(
            f"{request.rounds} rounds are too few for an interval of 95 %; their whole range is "
            f"shown. Give --rounds {INTERVAL_ROUNDS} or more."
        )
    found += [f"{one.label} was not run: {one.failed}." for one in measured if one.failed]
    if request.emulate_collectives:  # emulated collectives sum nothing: losses are meaningless
        return found
    return found + loss_problems([measured[0], *measured[2:]], case.workload.dtype)


def disturbances(measured: Sequence[Measured], speed: float | None) -> list[str]:
    """Return what shows that the machine did something else, too: errors are of both then."""
    spreads = {
        one.label: half_spread(one.makespans_ns) / statistics.median(one.makespans_ns)
        for one in measured
        if len(one.makespans_ns) >= INTERVAL_ROUNDS
    }
    found = []
    widest = max(spreads, key=spreads.__getitem__, default="")
    if spreads.get(widest, 0) > LARGE_SPREAD:
        found.append(
            f"Iterations of {widest} vary by ± {spreads[widest]:.0%}: something disturbed the "
            "machine, or its speed is not steady; errors of predictions show that, too."
        )
    if speed is not None and abs(speed - 1) > OTHER_SPEED:
        found.append(
            f"The machine computes at {speed:.2f} times the speed that it was profiled at: "
            "something else runs on it, or its clock is another; judge predictions by the error at "
            "present speed, or profile again."
        )
    return found


def _timelines(compared: Sequence[PlanTimelines]) -> dict[str, Timeline]:
    found = {}
    for one in compared:
        found[f"{one.candidate.name} predicted"] = one.predicted
        if one.measured.timeline is not None:
            found[f"{one.candidate.name} measured"] = one.measured.timeline
    return found
