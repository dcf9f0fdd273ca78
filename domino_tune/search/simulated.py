"""The space of plans of a case, and the simulated cost of each plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from domino_tune.search.problem import TIE_PERCENT, Evaluation, Record
from domino_tune.search.space import Space, SpaceSpec, Target, enumerate_plans
from domino_tune.store.formats.deepspeed import check_deepspeed
from simulator.bounds import Bounds
from simulator.build import Builder
from simulator.case import Case
from simulator.clock import settle
from simulator.errors import InfeasiblePlanError
from simulator.estimate import Estimates
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.memory import live_peaks, peak_bytes, static_memory
from simulator.overlap import CHOICES, EP_OVERLAP, GEMMS, RIVALS, gemms_of
from simulator.plan import (
    MAX_ROW_SLICES,
    MEGATRON,
    SlicePlan,
    Slicing,
    check_pairs,
    searched_slicings,
)
from simulator.predict import iteration_ns, predict
from simulator.stack import reads_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(kw_only=True)
class SimulatedPlans:
    """The Problem of a case: time and memory of each plan by simulation, computed once."""

    case: Case
    plans: Space
    orders: dict[SlicePlan, LayerOrder] = field(default_factory=dict)
    evaluated: dict[SlicePlan, Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bounds = Bounds(self.case)
        self._bounds_ns: dict[SlicePlan, int] = {}
        self._prior_ns = cache(Estimates(self.case, self._bounds).prior_ns)
        self._static: dict[tuple[object, ...], int] = {}

    def order(self, plan: SlicePlan) -> LayerOrder:
        """Return the plan's explicit order."""
        if plan not in self.orders:
            self.orders[plan] = order_of(self.case, plan)
        return self.orders[plan]

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Return time by the fast engine, and peak memory.

        Raise InfeasiblePlanError (``memory``) when the plan does not fit.
        """
        found = self.evaluated.get(plan)
        if found is None:
            found = self.evaluated[plan] = self._evaluate(plan)
        return found

    def _evaluate(self, plan: SlicePlan) -> Evaluation:
        case, order = self.case, order_of(self.case, plan)
        if case.cluster.pp > 1 or plan.strategy == EP_OVERLAP:
            peak = peak_bytes(case, plan, order)
            case.check_memory(plan, peak)
            return Evaluation(iteration_ns=iteration_ns(case, plan, order), peak_bytes=peak)
        schedule = Builder(case.shapes(plan), order).schedule()
        peak = self._static_bytes(plan) + max(live_peaks(schedule)).whole
        case.check_memory(plan, peak)
        found = settle(schedule, case.cost, case.power, case.cluster.clock_mhz).totals
        return Evaluation(
            iteration_ns=found.with_constant(case.constant_ns).makespan_ns, peak_bytes=peak
        )

    def _static_bytes(self, plan: SlicePlan) -> int:
        """Return what a rank holds all the time, which is the same for all cuts."""
        mode = plan.strategy, plan.tp_comm_overlap, plan.sequence_parallel
        found = self._static.get(mode)
        if found is None:
            found = self._static[mode] = sum(static_memory(self.case, plan))
        return found

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a proven bound, without an engine."""
        return self.lower_bounds_ns([plan])[0]

    def lower_bounds_ns(self, plans: Sequence[SlicePlan]) -> list[int]:
        """Return a proven bound of each plan, without an engine."""
        known = self._bounds_ns
        asked = [plan for plan in plans if plan not in known]
        if asked:
            known |= zip(asked, self._bounds.lower_bounds_ns(asked), strict=True)
        return [known[plan] for plan in plans]

    def any_order_ns(self, plans: Sequence[SlicePlan]) -> list[int]:
        """Return bounds that need no orders of the plans."""
        return self._bounds.any_order_ns(plans)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return a closed-form estimate, without an engine."""
        return self._prior_ns(plan)

    @property
    def quick_bounds_ns(self) -> Sequence[int]:
        """Return a bound for each plan, whatever its order."""
        bounds: list[int] = self._quick_ns.tolist()
        return bounds

    @cached_property
    def _quick_ns(self) -> Ints:
        groups = self.plans.bound_groups(
            reads_columns=reads_columns(self.case.model, self.case.workload)
        )
        return self._bounds.quick_ns(groups)

    def left(self, record: Record) -> int | None:
        """Return how many plans at most an exhaustive search will still look at, by their bounds;
        None before the first trial. The search itself asks for these bounds before it ends."""
        if not record.trials:
            return None
        ends_ns = min(trial.iteration_ns for trial in record.trials) * (100 + TIE_PERCENT)
        near = np.flatnonzero(self._quick_ns * 100 <= ends_ns)
        unknown = near[self._exact_ns[near] < 0]
        asked = [self.plans[one] for one in unknown.tolist()]
        self._exact_ns[unknown] = self.lower_bounds_ns(asked)
        open_ = near[self._exact_ns[near] * 100 <= ends_ns]
        looked_at = np.fromiter(record.history, np.int64, len(record.history))
        return len(np.setdiff1d(open_, looked_at, assume_unique=True))

    @cached_property
    def _exact_ns(self) -> Ints:
        """The bounds that ``left`` knows; below 0 where it has not asked."""
        return np.full(len(self.plans), -1, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class CasePlans:
    """A case with its space and Problem, so that the quanta of one search build them once."""

    case: Case
    target: str | None = None

    @cached_property
    def space(self) -> Space:
        """Return all plans. Raise InfeasiblePlanError when the target cannot run the workload."""
        return space_of(self.case, self.target)

    @cached_property
    def problem(self) -> SimulatedPlans:
        """Return the Problem that is searched."""
        return SimulatedPlans(case=self.case, plans=self.space)


def slicings_of(case: Case) -> tuple[Slicing, ...]:
    """Return the ways to cut row slices that are searched, as far as the profile can price them."""
    searched = searched_slicings(case.workload.micro_batch_size)
    return searched if case.can_slice_sequences else searched[:1]


def check_target(case: Case, target: str | None) -> None:
    """Raise InfeasiblePlanError (``target``) for a layout that the export to the target refuses."""
    if target == "deepspeed":
        check_deepspeed(case.model, case.workload, case.cluster)


def space_of(case: Case, target: str | None) -> Space:
    """Return all plans of a case, with the CTA counts of its profile for the TP group.

    Raise InfeasiblePlanError (``target``) where the target cannot run the case at all.
    """
    check_target(case, target)
    spec = SpaceSpec(
        row_slices=tuple(range(1, MAX_ROW_SLICES + 1)),
        comm_ctas=case.comm_ctas_choices,
        sequence_parallels=case.modes,
        slicings=slicings_of(case),
    )
    return enumerate_plans(
        case.model, case.workload, tp=case.cluster.tp, spec=spec,
        target=cast("Target | None", target),
    )  # fmt: skip


# The rivals' plans, chosen by simulation ----------------------------------------------------------
# What each GEMM's collective is hidden by, and whether weight gradients of experts wait where two
# micro-batches run beside each other.

SHORT_LAYERS: Final = 4
"""Layers of the stack on which methods are compared; all layers are alike."""


def has_rivals(case: Case) -> bool:
    """Return whether the strategies of ``RIVALS`` can run: on GPUs of one NVLink domain, with
    sharded tokens. The baseline's own gathers must be timed, since theirs follow from them."""
    inside = case.cluster.tp > 1 and case.cluster.tp_group[0] == 1
    return inside and True in case.modes and case.profile.machine.backend == "nccl"


def usual_rivals(case: Case) -> tuple[SlicePlan, ...]:
    """Return each rival's plan with the methods that its framework has by default, as
    far as they divide the tokens; of those that hide a GEMM's collective none where ``has_rivals``
    is false."""
    pairs = _pairs(case)[:1]
    if not has_rivals(case):
        return pairs
    tokens = case.workload.tokens // case.cluster.cp
    usual = (
        _usual(strategy)
        for strategy, methods in RIVALS.items()
        if all(tokens % (max(1, how.num_splits) * case.cluster.tp) == 0 for how in methods.values())
    )
    return (*usual, *pairs)


@cache
def _usual(strategy: str) -> SlicePlan:
    return replace(MEGATRON, strategy=strategy, sequence_parallel=True)  # type: ignore[arg-type]


def rival_plans(case: Case) -> dict[str, SlicePlan]:
    """Return each rival's best plan by name of its strategy: of those that hide the collectives of
    GEMMs, none where ``has_rivals`` is false."""
    found = dict(zip([EP_OVERLAP], paired_plans(case), strict=False))
    for strategy in RIVALS if has_rivals(case) else ():
        try:
            found[strategy] = tuned_rival(case, strategy)
        except InfeasiblePlanError:  # tokens that no chunks divide
            continue
    return found


def paired_plans(case: Case) -> list[SlicePlan]:
    """Return the plans of two micro-batches beside each other, the fastest first; none where they
    cannot run."""
    return sorted(_pairs(case), key=lambda one: predict(case, one).makespan_ns)


def _pairs(case: Case) -> tuple[SlicePlan, ...]:
    """Return the same, the usual one first."""
    if case.profile.machine.backend != "nccl":
        return ()
    try:
        check_pairs(case.model, case.workload, case.cluster)
    except InfeasiblePlanError:
        return ()
    usual = replace(MEGATRON, strategy=EP_OVERLAP, sequence_parallel=case.modes[0])
    return usual, replace(usual, wgrad="deferred")


def tuned_rival(case: Case, strategy: str) -> SlicePlan:
    """Return the plan of a strategy whose GEMMs each have the fastest method, one after the other,
    until no other one helps: where the host sets the pace, they depend on each other.

    Raise InfeasiblePlanError where the strategy cannot run the workload.
    """
    plan = _usual(strategy)
    short = _short(case)
    best_ns = predict(short, plan).makespan_ns
    told: dict[str, str] = {}
    tried, before_ns = {_texts(told)}, best_ns + 1
    while best_ns < before_ns:
        before_ns = best_ns
        for gemm in GEMMS:
            for how in (one for kind, one in CHOICES[strategy] if gemm in gemms_of(kind)):
                other = {**told, gemm: how.text}
                if how == RIVALS[strategy][gemm]:
                    del other[gemm]
                if _texts(other) in tried:
                    continue
                tried.add(_texts(other))
                try:
                    other_ns = predict(
                        short, replace(plan, tp_comm_overlap=_texts(other))
                    ).makespan_ns
                except InfeasiblePlanError:
                    continue
                if other_ns < best_ns:
                    best_ns, told = other_ns, other
    tuned = replace(plan, tp_comm_overlap=_texts(told))
    # What helps a short stack need not help the whole one: its clock is another.
    return min((plan, tuned), key=lambda one: predict(case, one).makespan_ns)


def _texts(told: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{gemm}={told[gemm]}" for gemm in GEMMS if gemm in told)


def _short(case: Case) -> Case:
    """Return one micro-batch of a few layers of the case, on one replica; experts need all."""
    model, cluster = case.model, case.cluster
    layers = min(SHORT_LAYERS, model.num_hidden_layers)
    dense = min(model.first_k_dense_replace, layers // 2)
    again = min(layers, case.workload.recompute_layers)
    return replace(
        case,
        model=replace(model, num_hidden_layers=layers, first_k_dense_replace=dense),
        workload=replace(
            case.workload, grad_accumulation=1, pp_layers=(), recompute_layers=again,
            overlap_p2p=False, pp_schedule="1f1b", data_parallel="replicas",
            overlap_param_gather=False,
        ),
        cluster=replace(cluster, pp=1, vpp=1, dp=cluster.dp if model.num_experts else 1),
    )  # fmt: skip
