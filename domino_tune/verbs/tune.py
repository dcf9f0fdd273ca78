"""tune: search the plans of a case for the fastest, by simulation."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from domino_tune.base.cores import Ahead, in_turn, where_long
from domino_tune.base.progress import Pace, Progress, no_progress
from domino_tune.requests import TuneRequest
from domino_tune.results.tune import TrialResult, TuneResult
from domino_tune.search import (
    DEFAULT_TRIALS,
    SEARCHES,
    Ledger,
    Record,
    SearchOptions,
    SearchResult,
    Trial,
    choose_best,
)
from domino_tune.search.problem import go_on
from domino_tune.search.simulated import CasePlans, SimulatedPlans
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.fitting import check_may_fit
from domino_tune.verbs.frameworks import frameworks_of
from domino_tune.verbs.landscape import contention_sensitivity, plan_grid
from domino_tune.verbs.resolve import Chosen, check_collectives, resolve
from domino_tune.verbs.simulate import simulate_plan
from simulator.case import Case
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError
from simulator.specs import TP_COLLECTIVES


def tune(
    request: TuneRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> TuneResult:
    """Return the best plan, found as the request says; ``progress`` gets each plan tried.

    Names are looked up on ``shelf``.
    """
    cases = cases_to_tune(resolve(request, shelf=shelf), request.tune_also)
    return tune_cases(cases, request, progress)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A case, the problem searched (which stores the plans' orders), and the search's result."""

    case: Case
    problem: SimulatedPlans
    found: SearchResult


@dataclass(frozen=True, kw_only=True)
class AllSearched:
    """The searched cases, and those without a feasible plan, each with its reason."""

    made: tuple[Searched, ...]
    failed: tuple[tuple[CasePlans, InfeasiblePlanError], ...]


def search(
    plans: CasePlans,
    request: TuneRequest,
    progress: Progress = no_progress,
    *,
    record: Record | None = None,
    pause: Callable[[], None] = go_on,
    ahead: Ahead = in_turn,
) -> Searched:
    """Search the plans of one case; continue from ``record``.

    Raise what ``pause`` raises, and InfeasiblePlanError if no plan is feasible.
    """
    case, space = plans.case, plans.space
    check_may_fit(case, request)
    batch = case.workload.micro_batch_size
    progress(f"micro-batch {batch}: {len(space):,} plans of {space.size:,} combinations")
    record = Record() if record is None else record
    limit = request.trials or (None if request.search == "exhaustive" else DEFAULT_TRIALS)

    def left() -> int:
        if limit is not None:
            return max(0, min(limit, len(space)) - len(record.history))
        left = plans.problem.left(record)  # None until a plan can run
        return len(space) - len(record.history) if left is None else left

    pace = Pace()

    def report(trial: Trial | None) -> None:
        words = pace.step(len(record.history), left() if pace.recounts else None)
        if trial is None:
            progress(f"{words}; {len(record.failed):,} of them cannot run")
        else:
            progress(f"{words}; {trial.plan.label}: {trial.iteration_ns * MS_PER_NS:,.1f} ms")

    options = SearchOptions(
        trials=request.trials, seed=request.seed, progress=report, pause=pause, record=record,
        ahead=ahead,
    )  # fmt: skip
    found = SEARCHES[request.search](plans.problem, options).within(space)
    return Searched(case=case, problem=plans.problem, found=found)


def tune_cases(
    cases: Sequence[Case], request: TuneRequest, progress: Progress = no_progress
) -> TuneResult:
    """Search each case (they differ in micro-batch size) and simulate the best plan of all.

    Raise the first case's InfeasiblePlanError if no case has a feasible plan.
    """
    began = time.perf_counter()
    plans = [CasePlans(case=case, target=request.target) for case in cases]
    found = search_all(plans, request, progress, ahead=where_long)
    result = conclude(found, request, progress, ahead=where_long)
    return replace(result, seconds=time.perf_counter() - began)


def search_all(
    cases: Sequence[CasePlans],
    request: TuneRequest,
    progress: Progress = no_progress,
    *,
    records: Sequence[Record] = (),
    pause: Callable[[], None] = go_on,
    ahead: Ahead = in_turn,
) -> AllSearched:
    """Search every case; continue from ``records``, one per case.

    Raise as ``search`` does, but InfeasiblePlanError only if no case has a feasible plan.
    """
    made, failed = [], []
    for plans, record in zip(cases, records or [Record() for _ in cases], strict=True):
        try:
            made.append(search(plans, request, progress, record=record, pause=pause, ahead=ahead))
        except InfeasiblePlanError as error:
            failed.append((plans, error))
    if not made:
        raise failed[0][1]
    return AllSearched(made=tuple(made), failed=tuple(failed))


def found_so_far(cases: Sequence[CasePlans], records: Sequence[Record]) -> AllSearched:
    """Return the results of interrupted searches; at least one has a trial."""
    made = []
    for plans, record in zip(cases, records, strict=True):
        if record.trials:
            ledger = Ledger(plans.problem, SearchOptions(record=record), trials=None)
            found = ledger.result(pruned=len(record.pruned)).within(plans.space)
            made.append(Searched(case=plans.case, problem=plans.problem, found=found))
    return AllSearched(made=tuple(made), failed=())


def conclude(
    searched: AllSearched,
    request: TuneRequest,
    progress: Progress = no_progress,
    *,
    ahead: Ahead = in_turn,
    stopped_by: str | None = None,
) -> TuneResult:
    """Simulate the best plan of all, its rivals and the grid of cuts; ``seconds`` is 0.

    ``stopped_by``: why the searches ended early; nothing is proven then.
    """
    made = searched.made
    best_trial = choose_best([one.found.best for one in made])
    best = next(one for one in made if one.found.best is best_trial)
    chosen = Chosen(plan=best_trial.plan, order=best.problem.order(best_trial.plan))
    progress("the search is done; comparing strategies")
    simulated = simulate_plan(best.case, chosen, judged=ahead)
    sensitivity = contention_sensitivity(best.case, chosen, best.found.trials, ahead)
    progress("simulating the grid of cuts")
    grid = plan_grid(best.problem, best_trial.peak_bytes, best.found.trials, ahead)
    infeasible: Counter[str] = Counter()
    for one in made:
        infeasible.update(one.found.infeasible)
    # If the target cannot run a micro-batch size at all, there is no space to count.
    hopeless = [(plans.space, e.reason) for plans, e in searched.failed if e.reason != "target"]
    for space, reason in hopeless:
        infeasible.update({**space.infeasible, reason: len(space)})
    proven = not stopped_by and all(one.found.optimality == "proven" for one in made)
    return TuneResult(
        best=simulated,
        search=request.search,
        seed=request.seed,
        target=request.target,
        optimality="proven" if proven else "best_found",
        space_size=sum(one.found.space_size for one in made)
        + sum(space.size for space, _ in hopeless),
        evaluations=sum(one.found.evaluations for one in made),
        pruned=sum(one.found.pruned for one in made),
        infeasible=dict(sorted(infeasible.items())),
        trials=tuple(_trial(one.case, trial) for one in made for trial in one.found.trials),
        grid=grid,
        contention=sensitivity,
        seconds=0.0,
        stopped_by=stopped_by,
        frameworks=frameworks_of(best.case, simulated),
    )


def _trial(case: Case, trial: Trial) -> TrialResult:
    return TrialResult(
        plan=trial.plan,
        micro_batch_size=case.workload.micro_batch_size,
        iteration_ms=trial.iteration_ns * MS_PER_NS,
        peak_memory_gib=trial.peak_bytes / GIB,
        fits_chance=case.memory.chance(trial.peak_bytes),
    )


def check_some_may_fit(cases: Sequence[Case], request: TuneRequest) -> None:
    """Raise the first case's InfeasiblePlanError if no plan of any case fits in memory."""
    failed = []
    for case in cases:
        try:
            check_may_fit(case, request)
            return
        except InfeasiblePlanError as error:
            failed.append(error)
    raise failed[0]


def cases_to_tune(case: Case, tune_also: Sequence[str]) -> list[Case]:
    """Return the case; with ``micro_batch_size``, one case for each size that keeps the global
    batch; with ``tp_collectives``, one for each kind that the profile times.
    """
    workloads = [case.workload]
    if "micro_batch_size" in tune_also:
        total = case.workload.micro_batch_size * case.workload.grad_accumulation
        workloads = [
            replace(case.workload, micro_batch_size=size, grad_accumulation=total // size)
            for size in divisors(total)
        ]
    if "tp_collectives" in tune_also:
        check_collectives(case.profile, "multimem")
        workloads = [
            replace(work, tp_collectives=kind) for work in workloads for kind in TP_COLLECTIVES
        ]
    return [replace(case, workload=work) for work in workloads]


def divisors(value: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    return sorted({*small, *(value // d for d in small)})
