"""validate: plans on real ranks, beside the baseline and the bound, compared with predictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from domino_tune.case import GIB, Setup
from domino_tune.emulation import as_emulated, plan_paces
from domino_tune.errors import RunError, ToleranceError
from domino_tune.graph_notes import graph_notes
from domino_tune.machine_check import check_machine
from domino_tune.medians import half_spread, median_interval
from domino_tune.planfile import PlanFile, load_plan
from domino_tune.present_speed import PresentCost, present_speed
from domino_tune.ranks import check_comm_ctas, check_runnable, launch_spec, patient
from domino_tune.requests import ValidateRequest
from domino_tune.results import Interval
from domino_tune.runtime.launch import check_ready
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.measured import Measured, Runs
from domino_tune.simulation import BASELINE, BOUND, MS
from domino_tune.store.profiles import load_profile
from domino_tune.tuning import Progress, silent
from domino_tune.validation_results import Iteration, RoleTimes, ValidatedPlan, ValidateResult
from simulator.errors import InfeasiblePlanError, InputError
from simulator.lines import LayerOrder
from simulator.memory import peak_bytes
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import Case, order_of
from simulator.predict import simulate as play
from simulator.profile import Profile
from simulator.timeline import Timeline

LOSS_TOLERANCE: Final = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Relative; slicing changes the order of sums."""
SURE_ROUNDS: Final = 6
"""Fewer rounds give no interval of 95 %."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan to run, the order it is run in, and its name in tables and traces."""

    name: str
    plan: SlicePlan
    order: LayerOrder


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One plan's two timelines: predicted, and measured as far as that came."""

    candidate: Candidate
    predicted: Timeline
    present: Timeline | None
    measured: Measured


def validate(request: ValidateRequest, progress: Progress = silent) -> ValidateResult:
    """Run the request's plans, baseline and bound in turn; compare with predictions.

    Ctrl-C gives what was measured by then (``interrupted``). Raises InputError for plans that do
    not belong together or a profile of another machine, RunError when a rank dies or hangs.
    """
    limit = parse_percent("--max-error", request.max_error) if request.max_error else None
    files = _plan_files(request.plan)
    first = next(iter(files.values()))
    profile = load_profile(request.profile or first.profile.name)
    setup = Setup(
        model=first.model, workload=first.workload, cluster=first.cluster, profile=profile,
        notes=tuple(_profile_notes(files, profile)),
    )  # fmt: skip
    check_runnable(setup.model, "Make the plan anew with --set attention_dropout=0.")
    lone = request.emulate_collectives
    spec = launch_spec(request, tp=setup.cluster.tp, dp=setup.cluster.dp, lone=lone)
    check_ready(spec)
    differing = check_machine(setup, spec, force=request.force)
    check_comm_ctas((one.plan.comm_ctas for one in files.values()), spec.backend)
    reference, setup = setup.profile_ref, as_emulated(setup, spec) if lone else setup
    candidates = _candidates(setup, files)
    timelines = [play(setup.case, one.plan, one.order) for one in candidates]
    runs = Runs(
        model=setup.model, workload=setup.workload, cluster=setup.cluster,
        plans=[(one.plan, one.order) for one in candidates], rounds=request.rounds,
        paces=plan_paces(setup, [one.plan for one in candidates], timelines) if lone else None,
    )  # fmt: skip
    longest_ns = max(timeline.makespan_ns for timeline in timelines)
    interrupted = _run(runs, patient(spec, longest_ns), progress)
    measured = runs.measured()
    speed = present_speed(setup.case.cost, measured[1])
    now = _present_case(setup, speed) if speed else None
    compared = [
        Compared(
            candidate=one,
            predicted=timeline,
            present=play(now, one.plan, one.order) if now else None,
            measured=found,
        )
        for one, timeline, found in zip(candidates, timelines, measured, strict=True)
    ]
    return ValidateResult(
        plans=tuple(_validated(setup, one, compared[0]) for one in compared),
        max_error=limit,
        present_speed=speed,
        profile=reference,
        machine_differences=tuple(differing),
        warnings=tuple(_warnings(setup, request, differing, measured)),
        rounds=request.rounds,
        interrupted=interrupted,
        emulated_collectives=lone,
        backend=spec.backend,
        emulate_link_bits_per_s=spec.emulate_link_bits_per_s,
        model=setup.model,
        workload=setup.workload,
        cluster=setup.cluster,
        timelines=_timelines(compared),
    )


def check_result(result: ValidateResult) -> None:
    """Raise what a result that was shown ends with: KeyboardInterrupt where it was interrupted,
    InfeasiblePlanError where none of the given plans ran, ToleranceError where one is off by more
    than ``max_error``."""
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
        told = ", ".join(f"{one.name} {one.error:+.1%}" for one in off)
        raise ToleranceError(
            f"Predictions are further off than --max-error {100 * limit:g}%: {told}; profile this "
            "machine anew, or allow more."
        )


def parse_percent(name: str, text: str) -> float:
    """``5%`` or ``5`` as 0.05. Raises InputError that begins with ``name``."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e6:
        raise InputError(f"{name} cannot be {text!r}; write percent, like 5%.")
    return value / 100


def _plan_files(paths: Sequence[str]) -> dict[str, PlanFile]:
    """Plan files by their names, which are made distinct; all of one question.

    Raises InputError naming the fields in which they differ.
    """
    if not paths:
        raise InputError("Missing --plan: give a plan file of `tune --out`, or several.")
    named: dict[str, PlanFile] = {}
    for path in paths:
        loaded = load_plan(path)
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


def _profile_notes(files: dict[str, PlanFile], profile: Profile) -> list[str]:
    return [
        f"{name} was made on another profile ({one.profile.name}, {one.profile.content_id[:19]}…) "
        "than the one that predicts here."
        for name, one in files.items()
        if one.profile.content_id != profile.content_id
    ]


def _candidates(setup: Setup, files: dict[str, PlanFile]) -> list[Candidate]:
    """Baseline, bound, and the given plans in the orders that their files hold."""
    ours = [
        Candidate(name=name, plan=plan, order=order_of(setup.case, plan))
        for name, plan in ((BASELINE, MEGATRON), (BOUND, NO_COMM))
    ]
    return ours + [
        Candidate(name=name, plan=one.plan, order=one.order) for name, one in files.items()
    ]


def _run(runs: Runs, spec: LaunchSpec, progress: Progress) -> bool:
    """Run; True where Ctrl-C cut it short. It is passed on while nothing has been measured."""

    def step(plan: int, makespan_ns: int) -> None:
        label, done = runs.plans[plan][0].label, len(runs.steps[plan])
        progress(f"round {done} of {runs.rounds}: {label} {makespan_ns * MS:,.1f} ms")

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


def _present_case(setup: Setup, speed: float) -> Case:
    cost = PresentCost(setup.profile, speed=speed, cuda_graph=setup.cluster.cuda_graph)
    return replace(setup.case, cost=cost)


def _validated(setup: Setup, one: Compared, baseline: Compared) -> ValidatedPlan:
    makespans = one.measured.makespans_ns
    measured = _measured(one.measured, baseline.measured) if makespans else None
    low, high = median_interval(makespans) if makespans else (0, 0)
    plan, order = one.candidate.plan, one.candidate.order
    return ValidatedPlan(
        name=one.candidate.name,
        plan=plan,
        predicted=_iteration(
            one.predicted.makespan_ns, baseline.predicted.makespan_ns, one.predicted,
            peak_bytes(setup.case, plan, order),
        ),
        measured=measured,
        error=_error(one.predicted, one.measured),
        error_at_present_speed=_error(one.present, one.measured),
        interval_ms=Interval(low=low * MS, high=high * MS) if makespans else None,
        spread_ms=half_spread(makespans) * MS if makespans else None,
        loss=_finite(one.measured.losses[0]) if makespans else None,
        failed=one.measured.failed,
        makespans_ms=tuple(makespan * MS for makespan in makespans),
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
        iteration_ms=makespan_ns * MS,
        speedup=baseline_ns / makespan_ns if baseline_ns else None,
        comm_ms=parts.comm_ns * MS if parts else None,
        exposed_comm_ms=parts.exposed_comm_ns * MS if parts else None,
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
    """Every role's time, predicted and measured, longest measured first; empty without a measured
    timeline. Measured is the sum of the ops' usual durations."""
    if measured.typical_ns is None:
        return ()
    sums: dict[str, list[float]] = {}
    spans = zip(
        predicted.ops, predicted.start_ns, predicted.end_ns, measured.typical_ns, strict=True
    )
    for op, start, end, usual_ns in spans:
        total = sums.setdefault(op.role, [0, 0.0, 0.0])
        total[0] += 1
        total[1] += end - start
        total[2] += usual_ns
    found = [
        RoleTimes(
            role=role,
            count=int(count),
            predicted_ms=expected_ns * MS,
            measured_ms=usual_ns * MS,
            ratio=usual_ns / expected_ns if expected_ns else None,
        )
        for role, (count, expected_ns, usual_ns) in sums.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.measured_ms, row.role)))


def _warnings(
    setup: Setup, request: ValidateRequest, differing: list[str], measured: Sequence[Measured]
) -> list[str]:
    found = list(setup.notes)
    if differing:
        found.append(f"The profile is of another machine: {'; '.join(differing)}.")
    if setup.cluster.cuda_graph:
        found += graph_notes(measured)
    if request.rounds < SURE_ROUNDS:
        found.append(
            f"{request.rounds} rounds are too few for an interval of 95 %; their whole range is "
            f"shown. Give --rounds {SURE_ROUNDS} or more."
        )
    found += [f"{one.label} was not run: {one.failed}." for one in measured if one.failed]
    if request.emulate_collectives:  # nothing is summed: losses are not the model's
        return found
    return found + loss_problems([measured[0], *measured[2:]], setup.workload.dtype)


def loss_problems(plans: Sequence[Measured], dtype: str) -> list[str]:
    """What is wrong with the losses. Weights stand still, so in one round all plans but the bound
    must give one loss and one gradient norm: one that does not computes something else."""
    tolerance = LOSS_TOLERANCE[dtype]
    found = []
    ran = [one for one in plans if one.losses]
    for one in ran:
        if not all(map(math.isfinite, (*one.losses, *one.grad_norms))):
            found.append(f"{one.label} gave a loss or gradient norm that is not finite.")
            continue
        for what, mine, firsts in (
            ("loss", one.losses, ran[0].losses),
            ("gradient norm", one.grad_norms, ran[0].grad_norms),
        ):
            worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(mine, firsts, strict=False))
            if worst > tolerance:
                found.append(
                    f"The {what} of {one.label} differs from {ran[0].label}'s in the same round by "
                    f"up to {worst:.1%}: they do not compute the same."
                )
    return found


def _timelines(compared: Sequence[Compared]) -> dict[str, Timeline]:
    found = {}
    for one in compared:
        found[f"{one.candidate.name} predicted"] = one.predicted
        if one.measured.timeline is not None:
            found[f"{one.candidate.name} measured"] = one.measured.timeline
    return found
