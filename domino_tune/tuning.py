"""tune: search the plans of a setup, with the simulator as the objective."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Final, cast

from domino_tune.case import GIB, Chosen, Setup
from domino_tune.grid import plan_grid
from domino_tune.requests import TuneRequest
from domino_tune.results import TrialResult, TuneResult
from domino_tune.search import (
    SEARCHES,
    Evaluation,
    Record,
    SearchOptions,
    SearchResult,
    Space,
    SpaceSpec,
    Trial,
    choose_best,
    enumerate_plans,
)
from domino_tune.search.problem import go_on
from domino_tune.search.space import Target
from domino_tune.sensitivity import contention_sensitivity
from domino_tune.simulation import MS, simulate_plan
from simulator.closed_form import ClosedForm
from simulator.errors import InfeasiblePlanError
from simulator.lines import LayerOrder
from simulator.memory import peak_bytes
from simulator.plan import MAX_ROW_SLICES, SlicePlan
from simulator.predict import order_of, predict

HOPELESS: Final = 1.1
"""Share of a GPU's memory above which no other cut is expected to help."""
Progress = Callable[[str], None]


def silent(message: str) -> None:
    """Progress that nobody watches."""


@dataclass(kw_only=True)
class SimulatedPlans:
    """The search's view of a setup: every plan's time and memory by simulation, each kept."""

    setup: Setup
    plans: Sequence[SlicePlan]
    orders: dict[SlicePlan, LayerOrder] = field(default_factory=dict)
    known: dict[SlicePlan, Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        closed = ClosedForm(self.setup.case)
        self._bound_ns, self._prior_ns = cache(closed.lower_bound_ns), cache(closed.prior_ns)

    def order(self, plan: SlicePlan) -> LayerOrder:
        """The plan's explicit order."""
        if plan not in self.orders:
            self.orders[plan] = order_of(self.setup.case, plan)
        return self.orders[plan]

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Time by the fast engine, and peak memory. Raises InfeasiblePlanError (``memory``)."""
        if plan not in self.known:
            order = self.order(plan)
            peak = peak_bytes(self.setup.case, plan, order)
            self.setup.check_memory(plan, peak)
            iteration_ns = predict(self.setup.case, plan, order).makespan_ns
            self.known[plan] = Evaluation(iteration_ns=iteration_ns, peak_bytes=peak)
        return self.known[plan]

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Proven bound, without an engine."""
        return self._bound_ns(plan)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Closed-form estimate, without an engine."""
        return self._prior_ns(plan)


@dataclass(frozen=True, kw_only=True, eq=False)
class SetupPlans:
    """A setup and the plans it is searched among; a search that goes on finds all that was listed,
    ordered and bounded before."""

    setup: Setup
    target: str | None = None

    @cached_property
    def space(self) -> Space:
        """All plans. Raises InfeasiblePlanError where the target cannot run the workload."""
        return space_of(self.setup, self.target)

    @cached_property
    def problem(self) -> SimulatedPlans:
        """What the search asks."""
        return SimulatedPlans(setup=self.setup, plans=self.space)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One setup's search: its problem (which keeps the orders) and what was found."""

    setup: Setup
    problem: SimulatedPlans
    found: SearchResult


@dataclass(frozen=True, kw_only=True)
class AllSearched:
    """What the searches of all setups found, and why others have no plan that can run."""

    made: tuple[Searched, ...]
    failed: tuple[tuple[SetupPlans, InfeasiblePlanError], ...]


def space_of(setup: Setup, target: str | None) -> Space:
    """All plans of a setup, with the CTA counts that its profile knows for the TP group."""
    nodes, per_node = setup.cluster.tp_group
    spec = SpaceSpec(
        row_slices=tuple(range(1, MAX_ROW_SLICES + 1)),
        comm_ctas=setup.profile.comm_ctas_choices(nodes, per_node),
    )
    return enumerate_plans(
        setup.model, setup.workload, spec=spec, target=cast("Target | None", target)
    )


def search(
    plans: SetupPlans,
    request: TuneRequest,
    progress: Progress = silent,
    *,
    record: Record | None = None,
    pause: Callable[[], None] = go_on,
) -> Searched:
    """Search one setup's plans, or go on where ``record`` is. Raises what ``pause`` raises, and
    InfeasiblePlanError when no plan can run."""
    setup, space = plans.setup, plans.space
    _refuse_hopeless(plans.problem)
    batch = setup.workload.micro_batch_size
    progress(f"micro-batch {batch}: {len(space):,} plans of {space.size:,} combinations")

    def report(trial: Trial) -> None:
        progress(f"{trial.plan.label}: {trial.iteration_ns * MS:,.1f} ms")

    options = SearchOptions(
        trials=request.trials, seed=request.seed, progress=report, pause=pause, record=record
    )
    found = SEARCHES[request.method](plans.problem, options).within(space)
    return Searched(setup=setup, problem=plans.problem, found=found)


def _refuse_hopeless(problem: SimulatedPlans) -> None:
    """Raise InfeasiblePlanError when no plan can fit, rather than count the memory of each.

    Slices change a rank's peak by few percent, so the least and the most sliced plan speak for all.
    """
    setup = problem.setup
    rows = min(MAX_ROW_SLICES, setup.workload.micro_batch_size)
    plans = (SlicePlan(row_slices=1), SlicePlan(row_slices=rows))
    peaks = {plan: peak_bytes(setup.case, plan, problem.order(plan)) for plan in plans}
    least = min(peaks, key=peaks.__getitem__)
    if peaks[least] > HOPELESS * setup.capacity_bytes:
        setup.check_memory(least, peaks[least])


def tune_setups(
    setups: Sequence[Setup], request: TuneRequest, progress: Progress = silent
) -> TuneResult:
    """Search each setup (they differ in micro-batch), and simulate the best plan of all in full.

    Raises the first setup's InfeasiblePlanError when none has a plan that can run.
    """
    began = time.perf_counter()
    plans = [SetupPlans(setup=setup, target=request.target) for setup in setups]
    result = conclude(search_all(plans, request, progress), request, progress)
    return replace(result, seconds=time.perf_counter() - began)


def search_all(
    setups: Sequence[SetupPlans],
    request: TuneRequest,
    progress: Progress = silent,
    *,
    records: Sequence[Record] = (),
    pause: Callable[[], None] = go_on,
) -> AllSearched:
    """Search every setup, or go on where ``records`` are, one a setup; raises what ``pause``
    raises, and the first setup's InfeasiblePlanError when none has a plan that can run."""
    made, failed = [], []
    for plans, record in zip(setups, records or [Record() for _ in setups], strict=True):
        try:
            made.append(search(plans, request, progress, record=record, pause=pause))
        except InfeasiblePlanError as error:
            failed.append((plans, error))
    if not made:
        raise failed[0][1]
    return AllSearched(made=tuple(made), failed=tuple(failed))


def conclude(
    searched: AllSearched, request: TuneRequest, progress: Progress = silent
) -> TuneResult:
    """Simulate the best plan of all in full, and what it hangs on; ``seconds`` is left at 0."""
    made = searched.made
    best_trial = choose_best(one.found.best for one in made)
    best = next(one for one in made if one.found.best is best_trial)
    chosen = Chosen(plan=best_trial.plan, order=best.problem.order(best_trial.plan))
    simulated = simulate_plan(best.setup, chosen)
    sensitivity = contention_sensitivity(best.setup, chosen, best.found.trials)
    progress("mapping the cuts")
    grid = plan_grid(best.setup, best_trial.peak_bytes)
    infeasible: Counter[str] = Counter()
    for one in made:
        infeasible.update(one.found.infeasible)
    # A target that cannot run a micro-batch at all has no space there to be counted.
    hopeless = [(plans.space, e.reason) for plans, e in searched.failed if e.reason != "target"]
    for space, reason in hopeless:
        infeasible.update({**space.infeasible, reason: len(space)})
    proven = all(one.found.optimality == "proven" for one in made)
    return TuneResult(
        best=simulated,
        search=request.method,
        seed=request.seed,
        target=request.target,
        optimality="proven" if proven else "best_found",
        space_size=sum(one.found.space_size for one in made)
        + sum(space.size for space, _ in hopeless),
        evaluations=sum(one.found.evaluations for one in made),
        pruned=sum(one.found.pruned for one in made),
        infeasible=dict(sorted(infeasible.items())),
        trials=tuple(_trial(one.setup, trial) for one in made for trial in one.found.trials),
        grid=grid,
        contention=sensitivity,
        seconds=0.0,
    )


def _trial(setup: Setup, trial: Trial) -> TrialResult:
    return TrialResult(
        plan=trial.plan,
        micro_batch_size=setup.workload.micro_batch_size,
        iteration_ms=trial.iteration_ns * MS,
        peak_memory_gib=trial.peak_bytes / GIB,
    )


def setups_to_tune(setup: Setup, tune_also: Sequence[str]) -> list[Setup]:
    """The setup, or with ``micro_batch_size`` all that keep the global batch."""
    if "micro_batch_size" not in tune_also:
        return [setup]
    workload = setup.workload
    total = workload.micro_batch_size * workload.grad_accumulation
    return [
        replace(
            setup,
            workload=replace(workload, micro_batch_size=size, grad_accumulation=total // size),
        )
        for size in _divisors(total)
    ]


def _divisors(value: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    return sorted({*small, *(value // d for d in small)})
