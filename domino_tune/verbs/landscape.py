"""The plans around the chosen one: the map of cuts, and where contention changes the winner."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.results.tune import ContentionPoint, ContentionSensitivity, GridCell
from domino_tune.search.problem import Trial, ties
from domino_tune.search.simulated import SimulatedPlans, slicings_of
from domino_tune.search.space import SpaceSpec
from domino_tune.verbs.resolve import Chosen, baseline_plan
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.errors import InfeasiblePlanError
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.memory import peak_bytes
from simulator.plan import Order, SlicePlan, Slicing
from simulator.predict import predict

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
COLUMNS: Final = (1, 2, 4, 8)
FIXED_ORDERS: Final[tuple[Order, ...]] = ("inter", "intra", "paper")
NEAR_FULL: Final = 0.9
"""Share of a GPU's recommended memory above which the memory of each cell is checked."""

FACTORS: Final = (0.0, 1.0, 1.25, 1.5, 2.0, 3.0)
RIVALS: Final = 4
"""Fastest plans to compare, in addition to the fastest of each number of row slices up to 8."""
BISECTIONS: Final = 5
NOTE: Final = (
    "Each cell is the fastest plan of order greedy, with weight gradients merged or not, and dgrad "
    "whole or in as many pieces as columns (without column slices also of inter, intra and paper), "
    "with sequence parallelism or without. "
    "Both blocks have the same column slices."
)


def plan_grid(
    problem: SimulatedPlans,
    known_peak_bytes: int,
    trials: Sequence[Trial] = (),
    rows: Sequence[int] = ROWS,
) -> tuple[GridCell, ...]:
    """Return one cell for each cut into ``rows``. ``known_peak_bytes``: the peak memory of any plan
    of the case; ``trials``: plans with known times.

    Slices hardly change the memory, so each cell's memory is checked only if it is nearly full.
    """
    case = problem.case
    near_full = known_peak_bytes > NEAR_FULL * case.memory.sure_bytes
    known_ns = {trial.plan: trial.iteration_ns for trial in trials}
    fastest = _Fastest(problem, known_ns)
    cuts = [(row, columns) for row in rows if any(_slicings(case, row)) for columns in COLUMNS]
    return tuple(_cell(fastest, *cut, near_full=near_full) for cut in cuts)


def _slicings(case: Case, rows: int) -> Iterator[Slicing]:
    """Yield the ways in which the search cuts ``rows`` slices."""
    for slicing in SpaceSpec(slicings=slicings_of(case)).slicings_for(rows):
        if slicing[0] == "sequence" or rows <= case.workload.micro_batch_size:
            yield slicing


class _Fastest(NamedTuple):
    """Finds the fastest variant of a cut, by simulating those that bounds do not rule out."""

    problem: SimulatedPlans
    known_ns: Mapping[SlicePlan, int]

    @property
    def case(self) -> Case:
        """The case of the plans."""
        return self.problem.case

    def of(self, rows: int, columns: int) -> tuple[SlicePlan, int]:
        """Return the fastest variant and its time (ns); the first of equal ones."""
        plans = [
            replace(plan, sequence_parallel=mode, slice_dim=dim, slice_balance=balance)
            for plan in _variants(rows, columns)
            for mode in self.case.modes
            for dim, balance in _slicings(self.case, rows)
            if dim == "batch" or plan.order != "paper"
        ]
        found: dict[SlicePlan, int] = {}
        bounds_ns = dict(zip(plans, self.problem.any_order_ns(plans), strict=True))
        for plan in sorted(plans, key=bounds_ns.__getitem__):
            if found and not self._may_win(plan, bounds_ns[plan], min(found.values())):
                continue
            found[plan] = self.known_ns.get(plan) or predict(self.case, plan).makespan_ns
        return min(found.items(), key=lambda item: (item[1], plans.index(item[0])))

    def _may_win(self, plan: SlicePlan, bound_ns: int, fastest_ns: int) -> bool:
        return bound_ns <= fastest_ns and self.problem.lower_bound_ns(plan) <= fastest_ns


def _cell(fastest: _Fastest, rows: int, columns: int, *, near_full: bool) -> GridCell:
    case = fastest.case
    try:
        best, best_ns = fastest.of(rows, columns)
        if near_full:
            case.check_memory(best, peak_bytes(case, best, order_of(case, best)))
    except InfeasiblePlanError as error:
        return GridCell(
            row_slices=rows, col_slices=columns, iteration_ms=None, plan=None, reason=error.reason
        )
    return GridCell(
        row_slices=rows, col_slices=columns, iteration_ms=best_ns * MS_PER_NS, plan=best
    )


def _variants(rows: int, columns: int) -> Iterator[SlicePlan]:
    for merge in (False, True) if rows > 1 else (False,):
        for dgrad in sorted({1, columns}):
            yield SlicePlan(
                row_slices=rows,
                attn_col_slices=columns,
                mlp_col_slices=columns,
                attn_dgrad_slices=dgrad,
                mlp_dgrad_slices=dgrad,
                merge_wgrad=merge,
            )
    if rows <= 2 and columns == 1:
        for order in FIXED_ORDERS:
            yield SlicePlan(row_slices=rows, order=order, wgrad="eager")


def contention_sensitivity(
    case: Case, chosen: Chosen, trials: Sequence[Trial], ahead: Ahead = in_turn
) -> ContentionSensitivity | None:
    """Return who wins, the chosen plan or a rival, at each contention.

    Contention scales the excess of every slowdown over 1. Issue orders stay as planned at ×1. A
    rival wins if it is more than 1 % faster. Return None if the profile has no contention.
    """
    if case.profile.contention is None:
        return None
    race = _Race(case, chosen, _rivals(trials, chosen.plan))
    points = tuple(point() for _, point in ahead(race.point, FACTORS))
    crossovers = [points[0]]
    for before, after in itertools.pairwise(points):
        if after.winner != before.winner:
            crossovers.append(race.crossover(before, after))
    factors = [crossover.factor for crossover in crossovers[1:]]
    return ContentionSensitivity(
        points=points,
        crossovers=tuple(crossovers),
        changes_above=min((factor for factor in factors if factor > 1.0), default=None),
        changes_below=max((factor for factor in factors if factor <= 1.0), default=None),
    )


def _rivals(trials: Sequence[Trial], chosen: SlicePlan) -> list[SlicePlan]:
    ranked = sorted(trials, key=lambda trial: (trial.iteration_ns, trial.index))
    picked = [trial.plan for trial in ranked[:RIVALS]]
    for rows in range(1, 9):
        picked += [t.plan for t in ranked if t.plan.row_slices == rows][:1]
    return [plan for plan in dict.fromkeys(picked) if plan != chosen]


class _Race:
    """The chosen plan and its rivals, predicted at any contention."""

    def __init__(self, case: Case, chosen: Chosen, rivals: Sequence[SlicePlan]) -> None:
        self.case = case
        self.chosen = chosen.plan
        self.baseline = baseline_plan(case)
        self.orders: dict[SlicePlan, LayerOrder] = {chosen.plan: chosen.order}
        self.orders |= {plan: order_of(case, plan) for plan in rivals}

    def point(self, factor: float) -> ContentionPoint:
        """Return who wins at ``factor``: the chosen plan if it ties with the fastest."""
        factors = replace(self.case.factors, contention=self.case.factors.contention * factor)
        case = replace(self.case, factors=factors)
        times = {p: predict(case, p, order).makespan_ns for p, order in self.orders.items()}
        fastest = min(times, key=lambda plan: (times[plan], plan.label))
        mine = times[self.chosen]
        winner = self.chosen if ties(mine, times[fastest]) else fastest
        return ContentionPoint(
            factor=factor,
            chosen_ms=mine * MS_PER_NS,
            winner=winner,
            winner_ms=times[winner] * MS_PER_NS,
            baseline_ms=predict(case, self.baseline).makespan_ns * MS_PER_NS,
        )

    def crossover(self, before: ContentionPoint, after: ContentionPoint) -> ContentionPoint:
        """Return the point where ``before``'s winner stops winning, to within 3 % of
        their distance."""
        good = before.factor
        for _ in range(BISECTIONS):
            middle = self.point((good + after.factor) / 2)
            if middle.winner == before.winner:
                good = middle.factor
            else:
                after = middle
        return after
