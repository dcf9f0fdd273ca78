"""tune: search the plans of a case for the fastest, by simulation; and which frameworks run it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from domino_tune.base.cores import Ahead, Beside, copies, in_turn, later, where_long
from domino_tune.base.progress import Progress, SearchPace, no_progress
from domino_tune.requests import TuneRequest
from domino_tune.results.simulate import SimulateResult
from domino_tune.results.tune import RunsThere, TrialResult, TuneResult
from domino_tune.search import SEARCHES, Ledger, search_exhaustive
from domino_tune.search.problem import (
    DEFAULT_TRIALS,
    Record,
    SearchOptions,
    SearchResult,
    Trial,
    choose_best,
    go_on,
)
from domino_tune.search.simulated import CasePlans, SimulatedPlans, rival_plans, space_of
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.advice import check_may_fit
from domino_tune.verbs.landscape import ROWS, contention_sensitivity, plan_grid
from domino_tune.verbs.resolve import Chosen, check_collectives, resolve
from domino_tune.verbs.simulate import simulate_plan
from domino_tune.verbs.verdict import Rivals
from simulator.case import Case
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError
from simulator.overlap import EP_OVERLAP
from simulator.plan import SlicePlan
from simulator.specs import TP_COLLECTIVES
from simulator.usable import SURE

# Frameworks ---------------------------------------------------------------------------------------
# Which of them run the best plan, and the best plan that each of the others runs.

MEGATRON_LM: Final = ("megatron", "userbuffers", EP_OVERLAP)
"""Strategies of the verdict that Megatron-LM runs."""
UNSLICED: Final = ("baseline", "baseline_no_sp")
"""Variants that slice nothing; all frameworks run the one without sequence parallelism."""


class _Found(NamedTuple):
    plan: SlicePlan
    iteration_ms: float


def frameworks_of(case: Case, best: SimulateResult) -> tuple[RunsThere, ...]:
    """Return for each framework the best plan of ``case`` that it runs; ``best`` is the best of
    all.

    DeepSpeed has a Domino of its own, for some models and cuts, and no sequence parallelism.
    """
    compared = best.verdict.contestants if best.verdict else ()
    in_megatron = [
        _Found(one.plan, one.iteration_ms)
        for one in compared
        if one.recommended and one.strategy in MEGATRON_LM
    ]
    everywhere = [
        _Found(best.plans[name], one.iteration_ms)
        for name, one in best.variants.items()
        if name in UNSLICED and one.fits_chance >= SURE and not best.plans[name].sequence_parallel
    ]
    own = _own_domino(case)
    in_deepspeed = [] if own is None else [*everywhere, *own]
    return (
        _runs_there("Megatron-LM", case, best, [*everywhere, *in_megatron]),
        _runs_there("DeepSpeed", case, best, in_deepspeed),
    )


def _runs_there(
    framework: str, case: Case, best: SimulateResult, found: Sequence[_Found]
) -> RunsThere:
    """Return the best of the plans ``found``, which are those that the framework runs."""
    there = min(found, key=lambda one: one.iteration_ms, default=None)
    runs_best = best.plan in (one.plan for one in found)
    if runs_best:
        there = _Found(best.plan, best.iteration_ms)
    asked = None if there is None else _request(there.plan, case)
    return RunsThere(
        framework=framework,
        runs_best=runs_best,
        plan=there and there.plan,
        iteration_ms=there and there.iteration_ms,
        speedup=there and best.baseline_ms / there.iteration_ms,
        route=asked and asked[0],
        request=asked and asked[1],
    )


def _own_domino(case: Case) -> list[_Found] | None:
    """Return the best plan of DeepSpeed's Domino; [] if none fits, None if its example, which
    exports are for, cannot run the workload."""
    try:
        space = space_of(case, "deepspeed")
    except InfeasiblePlanError:
        return None
    try:
        plans = SimulatedPlans(case=case, plans=space)
        best = search_exhaustive(plans, SearchOptions()).best
    except InfeasiblePlanError:
        return []
    return [_Found(best.plan, best.iteration_ns * MS_PER_NS)]


def _request(plan: SlicePlan, case: Case) -> tuple[str, dict[str, Any]] | None:
    """Return where to ask for the plan, and the fields to change; None for the baseline, which
    every answer contains."""
    if plan.strategy == "megatron":
        return None
    batch = {
        "micro_batch_size": case.workload.micro_batch_size,
        "grad_accumulation": case.workload.grad_accumulation,
    }
    if plan.strategy == "domino":
        return "tunes", {**batch, "target": "deepspeed"}
    told: dict[str, Any] = {"strategy": plan.strategy}
    if plan.strategy == EP_OVERLAP:
        told["wgrad"] = plan.wgrad
    else:
        told["tp_comm_overlap"] = list(plan.tp_comm_overlap)
    return "simulations", {**batch, **told, "sequence_parallel": plan.sequence_parallel}


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

    pace = SearchPace()

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
    with copies() as beside:
        # Of several cases it is open whose rivals count, until the best cut is known.
        rivals = beside(partial(rival_plans, cases[0])) if len(cases) == 1 else None
        found = search_all(plans, request, progress, ahead=where_long)
        result = conclude(found, request, progress, ahead=where_long, beside=beside, rivals=rivals)
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
    beside: Beside = later,
    rivals: Rivals | None = None,
    stopped_by: str | None = None,
) -> TuneResult:
    """Simulate the best plan of all, its rivals and, ``beside`` these, the grid of cuts, in two
    halves; ``seconds`` is 0.

    ``rivals``: their plans, where they are tuned already. ``stopped_by``: why the searches ended
    early; nothing is proven then.
    """
    made = searched.made
    best_trial = choose_best([one.found.best for one in made])
    best = next(one for one in made if one.found.best is best_trial)
    chosen = Chosen(plan=best_trial.plan, order=best.problem.order(best_trial.plan))
    progress("the search is done; comparing strategies and simulating the grid of cuts")
    grid = [
        beside(partial(plan_grid, best.problem, best_trial.peak_bytes, best.found.trials, rows))
        for rows in (ROWS[::2], ROWS[1::2])
    ]
    simulated = simulate_plan(best.case, chosen, judged=ahead, rivals=rivals)
    sensitivity = contention_sensitivity(best.case, chosen, best.found.trials, ahead)
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
        grid=tuple(
            sorted(
                (cell for half in grid for cell in half()),
                key=lambda cell: (cell.row_slices, cell.col_slices),
            )
        ),
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
    batch; with ``tp_collectives``, one for each kind that the profile times."""
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
