"""Input and output of a search: Problem, SearchOptions, Record, Trial, SearchResult."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from domino_tune.base.cores import Ahead, in_turn
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan

if TYPE_CHECKING:
    from domino_tune.search.space import Space

DEFAULT_TRIALS: Final = 40
TIE_PERCENT: Final = 1
"""A smaller difference, relative to the least time or memory, does not count."""
Optimality = Literal["proven", "best_found"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Cost of one plan: ns of an iteration, and peak bytes on one rank."""

    iteration_ns: int
    peak_bytes: int


class SearchProblem(Protocol):
    """Plans, and four functions of a plan, the most expensive first.

    All four are pure: the same plan always gives the same value.
    """

    @property
    def plans(self) -> Sequence[SlicePlan]:
        """Return the plans in a fixed order, each once."""
        ...

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Return time and memory of ``plan``. Raise InfeasiblePlanError if it cannot run."""
        ...

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a proven bound: never above ``evaluate(plan).iteration_ns``."""
        ...

    def lower_bounds_ns(self, plans: Sequence[SlicePlan]) -> Sequence[int]:
        """Return ``lower_bound_ns`` of each of ``plans``."""
        ...

    @property
    def quick_bounds_ns(self) -> Sequence[int]:
        """Return a cheaper bound for each plan, which is never above ``lower_bound_ns``."""
        ...

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return a closed-form estimate > 0 of the iteration time."""
        ...


def outcome(problem: SearchProblem, plan: SlicePlan) -> Evaluation | InfeasiblePlanError:
    """Return time and memory of ``plan``, or why it cannot run."""
    try:
        return problem.evaluate(plan)
    except InfeasiblePlanError as error:
        return error


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An evaluated plan that can run; ``index`` is its index in ``SearchProblem.plans``."""

    plan: SlicePlan
    iteration_ns: int
    peak_bytes: int
    index: int


@dataclass(kw_only=True)
class Record:
    """State of a search; an interrupted search continues from its record.

    ``history``: by index, in order of evaluation, the trial, or the error of a plan that cannot
    run. ``pruned``: indices of plans that a bound ruled out.
    """

    history: dict[int, Trial | InfeasiblePlanError] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)

    @property
    def trials(self) -> list[Trial]:
        """Return the evaluated plans that can run."""
        return [found for found in self.history.values() if isinstance(found, Trial)]

    @property
    def failed(self) -> dict[int, InfeasiblePlanError]:
        """Return the errors of the plans that cannot run, by index."""
        return {i: found for i, found in self.history.items() if not isinstance(found, Trial)}

    @property
    def times_ns(self) -> dict[int, float | None]:
        """Return ns by index, None if a plan cannot run."""
        return {
            index: found.iteration_ns if isinstance(found, Trial) else None
            for index, found in self.history.items()
        }


def go_on() -> None:
    """Do nothing: the default of ``SearchOptions.pause``."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Budget, seed, callbacks, and the record of an interrupted search.

    ``trials``: most evaluations, including plans that cannot run. None means the default of the
    search (``exhaustive``: all plans that bounds do not rule out; others: DEFAULT_TRIALS).
    ``seed``: for ``random``. ``progress`` is called after each evaluation, with None if the plan
    cannot run, and then ``pause``. If either raises an exception, the search ends; another search
    with the same ``record`` continues from there. ``ahead``: how ``exhaustive`` computes the next
    evaluations in advance.
    """

    trials: int | None = None
    seed: int = 0
    progress: Callable[[Trial | None], None] | None = None
    pause: Callable[[], None] = go_on
    record: Record | None = None
    ahead: Ahead = in_turn


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best trial, and all trials in order of evaluation.

    ``optimality`` is ``proven`` if every plan was evaluated or has a lower bound above the tie band
    of the best. ``evaluations`` counts calls of ``SearchProblem.evaluate``; ``infeasible`` counts
    plans that cannot run, by reason; ``pruned`` counts plans that a bound ruled out.
    ``space_size`` is the number of plans, or the size of the whole space after ``within``.
    """

    best: Trial
    trials: tuple[Trial, ...]
    optimality: Optimality
    evaluations: int
    space_size: int
    pruned: int = 0
    infeasible: dict[str, int] = field(default_factory=dict)

    def within(self, space: Space) -> SearchResult:
        """Return this result with the size of ``space`` and its infeasible counts added."""
        counts = Counter(self.infeasible) + space.infeasible
        return replace(self, space_size=space.size, infeasible=dict(sorted(counts.items())))


def ties(value: int, least: int) -> bool:
    """Return whether ``value`` is within 1 % of ``least``, in exact integers."""
    return 100 * value <= (100 + TIE_PERCENT) * least


def piece_count(plan: SlicePlan) -> int:
    """Return the number of tensor-parallel collectives of one layer, forward and backward."""
    rows, *pieces = plan.slices
    return rows * sum(pieces)


def choose_best(trials: Iterable[Trial]) -> Trial:
    """Return the best of the trials within 1 % of the fastest.

    Choose the least memory (up to 1 % more counts as equal), then the fewest slices, then the least
    time.
    """
    candidates = tuple(trials)
    fastest_ns = min(trial.iteration_ns for trial in candidates)
    close = [trial for trial in candidates if ties(trial.iteration_ns, fastest_ns)]
    least_bytes = min(trial.peak_bytes for trial in close)
    return min((t for t in close if ties(t.peak_bytes, least_bytes)), key=_rank)


def _rank(trial: Trial) -> tuple[int, int, int]:
    return piece_count(trial.plan), trial.iteration_ns, trial.index
