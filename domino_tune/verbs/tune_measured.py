"""measure: search with runs on real ranks, and store every run on disk."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from domino_tune.base.errors import RunError, TuningInterrupted
from domino_tune.base.progress import Progress, no_progress
from domino_tune.base.units import median_interval
from domino_tune.measure.machine import compared_fields, machine_of
from domino_tune.requests import MeasureRequest
from domino_tune.requests.command_line import command_line
from domino_tune.results.measured import MeasuredPlan, MeasuredTuneResult
from domino_tune.results.simulate import Interval
from domino_tune.results.tune import TrialResult
from domino_tune.runtime.launch import find_launcher
from domino_tune.runtime.launch.launch import check_ready
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.plan_runs import (
    FAILURES,
    OUT_OF_MEMORY,
    Measured,
    Runs,
    graph_notes,
    loss_problems,
)
from domino_tune.search.measured import (
    BASELINE,
    BASELINE_RATIO,
    EXHAUSTIVE,
    TRIALS,
    ChosenPool,
    MeasuredOptions,
    MeasuredRatios,
    MeasuredSearch,
    Ratio,
    baseline_of,
    choose_pool,
    pooled,
    ratio_of,
    search_measured,
)
from domino_tune.search.simulated import SimulatedPlans, space_of
from domino_tune.search.space import Pool, Space
from domino_tune.store.evidence import Evidence, LaunchRecord, PlanRun, Question, evidence_path
from domino_tune.store.plans import ProfileRef
from domino_tune.verbs.landscape import plan_grid
from domino_tune.verbs.ranks import (
    check_comm_ctas,
    check_machine,
    check_predicted_here,
    check_runnable,
    launch_spec,
    patient,
)
from domino_tune.verbs.resolve import Chosen, resolve
from domino_tune.verbs.simulate import simulate_plan
from simulator.case import Case
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError, InputError
from simulator.implementation import DOMINO_TUNE
from simulator.memory import peak_bytes
from simulator.plan import SlicePlan

ROUNDS: Final = 10
FINAL_ROUNDS: Final = 20


@dataclass(kw_only=True)
class MeasuringSession:
    """The runs of one search: each launch is stored in ``evidence`` before it is used.

    ``failures`` maps the index of a plan that failed to the reason.
    """

    case: Case
    problem: SimulatedPlans
    pool: Pool
    spec: LaunchSpec
    evidence: Evidence
    progress: Progress
    ratios: MeasuredRatios = field(default_factory=MeasuredRatios)
    failures: dict[int, str] = field(default_factory=dict)
    new_runs: int = 0
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places = {plan: index for index, plan in enumerate(self.pool.plans)}
        for record in self.evidence.records:
            self._learn(record)

    def measure(self, index: int) -> Ratio | None:
        """Run one plan, alternating with the baseline, or the baseline alone for BASELINE.

        Return None if the plan runs out of memory or a rank fails. Raise InfeasiblePlanError if the
        baseline itself runs out of memory.
        """
        self.new_runs += 1
        others = [] if index == BASELINE else [index]
        self.progress(f"plan {len(self.ratios.evaluated) + 1}: {self.pool.plans[index].label}")
        self._learn(self._launch("evaluation", others, ROUNDS))
        return self.ratios.evaluated[index]

    def compare(self, indices: Sequence[int]) -> dict[int, Ratio]:
        """Run several plans, alternating with the baseline; return the ratios of those that ran."""
        self.progress(f"comparing the {len(indices)} closest plans again")
        self._learn(self._launch("comparison", list(indices), FINAL_ROUNDS))
        compared = self.ratios.compared
        return {index: compared[index] for index in indices if index in compared}

    def baseline_ns(self) -> tuple[int, ...]:
        """Return the makespans in ns of all measured steps of the baseline."""
        return tuple(
            time_ns for record in self.evidence.records for time_ns in record.runs[0].makespans_ns
        )

    def peak_bytes(self, plan: SlicePlan) -> int | None:
        """Return the measured peak memory of a plan in bytes, or None."""
        runs = (run for record in self.evidence.records for run in record.runs)
        return max((run.peak_bytes or 0 for run in runs if run.plan == plan), default=0) or None

    def _launch(self, kind: Any, others: Sequence[int], rounds: int) -> LaunchRecord:
        plans = [self.pool.plans[index] for index in (BASELINE, *others)]
        ordered = [(plan, self.problem.order(plan)) for plan in plans]
        case, spec = self.case, patient(self.spec, float(max(self.pool.times_ns)))
        measured = Runs(
            case.model, case.workload, case.cluster, ordered, rounds, lenient=True
        ).run(spec, lambda plan, ns: self.progress(
            f"{plans[plan].label}: {ns * MS_PER_NS:,.1f} ms"
        ))  # fmt: skip
        if measured[0].failed:  # not stored: memory may be free next time
            raise InfeasiblePlanError(
                f"The baseline cannot run: {measured[0].failed}; lower --micro-batch-size or "
                "--seq-length, or raise --tp.",
                reason="memory",
            )
        problems = loss_problems(measured, self.case.workload.dtype)
        if self.case.cluster.cuda_graph:
            problems += graph_notes(measured)
        self.warnings += [text for text in problems if text not in self.warnings]
        record = LaunchRecord(kind=kind, runs=tuple(map(_plan_run, plans, measured)))
        self.evidence.append(record)
        return record

    def _learn(self, record: LaunchRecord) -> None:
        """Add a launch to ``ratios`` if the baseline ran; skip plans that are not in the pool."""
        baseline, *others = record.runs
        if baseline.failed:
            return
        self.ratios.evaluated.setdefault(BASELINE, BASELINE_RATIO)
        for run in others:
            index = self._places.get(run.plan)
            if index is None:
                continue
            if run.failed:
                self.failures[index] = run.failed
                self.ratios.evaluated[index] = None
                continue
            ratio = ratio_of(run.makespans_ns, baseline.makespans_ns)
            if record.kind == "evaluation":
                self.ratios.evaluated[index] = ratio
            else:
                earlier = self.ratios.compared.get(index)
                self.ratios.compared[index] = pooled([earlier, ratio]) if earlier else ratio


def _plan_run(plan: SlicePlan, measured: Measured) -> PlanRun:
    return PlanRun(
        plan=plan, makespans_ns=measured.makespans_ns, peak_bytes=measured.peak_bytes,
        failed=measured.failed,
    )  # fmt: skip


def tune_measured(request: MeasureRequest, progress: Progress = no_progress) -> MeasuredTuneResult:
    """Return the plan that runs fastest on real ranks.

    The same request again continues: runs in the evidence file are not repeated. Raise InputError
    for inconsistent options, a profile of another machine, or evidence for another question;
    RunError if a rank dies or hangs; TuningInterrupted on Ctrl-C. The evidence file is kept in
    every case.
    """
    began = time.perf_counter()
    check_measurable()
    case = played_case(request)
    check_runnable(case.model, case.cluster.tp)
    spec = launch_spec(request, tp=case.cluster.tp, dp=case.cluster.dp)
    check_ready(spec)
    differing = check_machine(case, spec, force=request.force)
    check_comm_ctas(case.comm_ctas_choices, spec.backend)
    question = question_of(case, spec)
    path = Path(request.evidence) if request.evidence else evidence_path(question)
    space = space_of(case, request.target)
    with Evidence(path, question) as evidence:
        known = [run.plan for record in evidence.records for run in record.runs]
        problem = SimulatedPlans(case=case, plans=space)
        choice = choose_pool(problem, space, request, known, progress)
        session = MeasuringSession(
            case=case, problem=problem, pool=choice.pool, spec=spec, evidence=evidence,
            progress=progress,
        )  # fmt: skip
        found = _search(session, request, choice)
        return _result(request, session, choice, found, differing, began)


def played_case(request: MeasureRequest) -> Case:
    """Return the case as the runtime plays it, with its own kernels and whole replicas.

    Raise InputError if the request asks for something else.
    """
    case = resolve(
        request.but(
            data_parallel=request.data_parallel or "replicas",
            implementation=request.implementation or DOMINO_TUNE.name,
        )
    )
    check_predicted_here(case, "Ask")
    return case


def check_measurable() -> None:
    """Raise InputError where nothing can be measured."""
    launcher = find_launcher()
    if launcher is not None:
        raise InputError(
            "`measure` starts new ranks for every plan, so it cannot run under "
            f"{launcher.name}. Run it without {launcher.name} on one machine, or `tune` "
            f"and run `validate` under {launcher.name}."
        )


def question_of(case: Case, spec: LaunchSpec) -> Question:
    """Return everything that measured times depend on, the profile, on which greedy orders depend,
    and the baseline, which every launch plays."""
    model = {name: value for name, value in asdict(case.model).items() if name != "name"}
    return {
        "model": model,
        "workload": asdict(case.workload),
        "cluster": asdict(case.cluster),
        "profile": asdict(ProfileRef.of(case.profile)),
        "machine": compared_fields(machine_of(spec)),
        "baseline": asdict(baseline_of(case)),
    }


def _search(
    session: MeasuringSession, request: MeasureRequest, choice: ChosenPool
) -> MeasuredSearch:
    options = MeasuredOptions(
        method=request.search,
        trials=request.trials or (EXHAUSTIVE if request.search == "exhaustive" else TRIALS),
        seed=request.seed,
    )
    try:
        return search_measured(
            session.pool, session.measure, session.compare, options, session.ratios
        )
    except KeyboardInterrupt:
        raise TuningInterrupted(f"{_so_far(session)} To go on: {command_line(request)}") from None
    except RunError as error:
        raise RunError(f"{error}\n{_so_far(session)} To go on: {command_line(request)}") from error


def _so_far(session: MeasuringSession) -> str:
    """Return how many plans are measured, where the evidence is, and the best so far."""
    ratios = session.ratios.pooled
    count = f"{len(session.ratios.evaluated)} plans measured: {session.evidence.path}."
    if not ratios:
        return f"No plan measured yet; the evidence is in {session.evidence.path}."
    best = min(ratios, key=lambda index: (ratios[index].log, index))
    return f"{count} Best so far: {session.pool.plans[best].label}, {_faster(ratios[best])}."


def _faster(ratio: Ratio) -> str:
    return f"{1 / ratio.value:.3f}x ({1 / ratio.high:.3f}–{1 / ratio.low:.3f})"


def _result(
    request: MeasureRequest, session: MeasuringSession, choice: ChosenPool, found: MeasuredSearch,
    differing: Sequence[str], began: float,
) -> MeasuredTuneResult:  # fmt: skip
    case, pool, problem = session.case, session.pool, session.problem
    best = simulate_plan(
        case, Chosen(plan=pool.plans[found.best], order=problem.order(pool.plans[found.best]))
    )
    measured = {index: _measured_plan(session, found, index) for index in session.ratios.evaluated}
    failed = Counter(FAILURES.get(session.failures[index], "run") for index in found.failed)
    infeasible = Counter(choice.space.infeasible) + failed
    everything = choice.whole and found.stopped == "all measured"
    return MeasuredTuneResult(
        best=best,
        search=request.search,
        seed=request.seed,
        target=request.target,
        optimality="all_measured" if everything else "best_found",
        space_size=choice.space.size,
        evaluations=len(measured),
        pruned=0,
        infeasible=dict(sorted(infeasible.items())),
        trials=tuple(_trial(session, index) for index in found.ratios),
        grid=plan_grid(SimulatedPlans(case=case, plans=Space()), round(best.peak_memory_gib * GIB)),
        contention=None,
        seconds=time.perf_counter() - began,
        chosen=measured[found.best],
        baseline=measured[BASELINE],
        measured=tuple(measured.values()),
        stopped=found.stopped,
        rounds=ROUNDS,
        comparisons=sum(one.kind == "comparison" for one in session.evidence.records),
        new_runs=session.new_runs,
        evidence=str(session.evidence.path),
        resume=command_line(request),
        backend=session.spec.backend,
        emulate_link_bits_per_s=session.spec.emulate_link_bits_per_s,
        machine_differences=tuple(differing),
        warnings=tuple(
            [f"The profile is of another machine: {'; '.join(differing)}."] * bool(differing)
            + session.warnings
        ),
    )


def _measured_plan(session: MeasuringSession, found: MeasuredSearch, index: int) -> MeasuredPlan:
    pool, plan = session.pool, session.pool.plans[index]
    predicted_ns = float(pool.times_ns[index])
    ratio = found.ratios.get(index)
    steps = session.baseline_ns()
    baseline_ms = statistics.median(steps) * MS_PER_NS
    interval = speedup = None
    if index == BASELINE:
        low, high = median_interval(steps)
        interval = Interval(low=low * MS_PER_NS, high=high * MS_PER_NS)
    elif ratio is not None:
        interval = Interval(low=baseline_ms * ratio.low, high=baseline_ms * ratio.high)
    if ratio is not None:
        speedup = Interval(low=1 / ratio.high, high=1 / ratio.low)
    peak = session.peak_bytes(plan)
    return MeasuredPlan(
        plan=plan,
        predicted_ms=predicted_ns * MS_PER_NS,
        predicted_speedup=float(pool.times_ns[BASELINE]) / predicted_ns,
        measured_ms=baseline_ms * ratio.value if ratio else None,
        measured_interval_ms=interval,
        speedup=1 / ratio.value if ratio else None,
        speedup_interval=speedup,
        peak_memory_gib=peak / GIB if peak else None,
        compared=index in found.compared,
        failed="" if ratio else session.failures.get(index, OUT_OF_MEMORY),
    )


def _trial(session: MeasuringSession, index: int) -> TrialResult:
    plan = session.pool.plans[index]
    need = peak_bytes(session.case, plan, session.problem.order(plan))
    return TrialResult(
        plan=plan,
        micro_batch_size=session.case.workload.micro_batch_size,
        iteration_ms=float(session.pool.times_ns[index]) * MS_PER_NS,
        peak_memory_gib=need / GIB,
        fits_chance=session.case.memory.chance(need),
    )
