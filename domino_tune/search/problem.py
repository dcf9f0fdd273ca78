"""What a search is given and what it returns: Problem, SearchOptions, Trial, SearchResult."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import SlicePlan
from simulator.specs import require_positive_int

if TYPE_CHECKING:
    from domino_tune.search.space import Space

DEFAULT_TRIALS: Final = 40
TIE_PERCENT: Final = 1
"""Of the least time, or memory: what is closer counts as equal."""
Optimality = Literal["proven", "best_found"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What one plan costs: nanoseconds of an iteration, and bytes at its peak on one rank."""

    iteration_ns: int
    peak_bytes: int

    def __post_init__(self) -> None:
        require_positive_int("evaluation", "iteration_ns", self.iteration_ns)
        if self.peak_bytes < 0:
            raise InputError(f"evaluation.peak_bytes must be ≥ 0, got {self.peak_bytes}.")


class Problem(Protocol):
    """A pool of plans and three ways to look at one of them, from dear to cheap.

    All three are pure: the same plan always gives the same answer.
    """

    @property
    def plans(self) -> Sequence[SlicePlan]:
        """The pool, in a fixed order, each plan once."""
        ...

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        """Time and memory of ``plan``. Raises InfeasiblePlanError when it cannot run."""
        ...

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Proven bound, without running an engine: never above ``evaluate(plan).iteration_ns``."""
        ...

    def prior_ns(self, plan: SlicePlan) -> float:
        """Closed-form estimate > 0 of the iteration time, without running an engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One plan that was evaluated and fits; ``index`` is its place in ``Problem.plans``."""

    plan: SlicePlan
    iteration_ns: int
    peak_bytes: int
    index: int


@dataclass(kw_only=True)
class Record:
    """What a search has learnt so far; one that was interrupted goes on from its record.

    ``history``: by index and in the order they were evaluated, the trial, or why a plan cannot run.
    ``pruned``: indices of plans that a bound ruled out on the way.
    """

    history: dict[int, Trial | InfeasiblePlanError] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)

    @property
    def trials(self) -> list[Trial]:
        """The plans that ran."""
        return [found for found in self.history.values() if isinstance(found, Trial)]

    @property
    def failed(self) -> dict[int, InfeasiblePlanError]:
        """The plans that cannot, by index."""
        return {i: found for i, found in self.history.items() if not isinstance(found, Trial)}

    @property
    def times_ns(self) -> dict[int, float | None]:
        """Time by index, None where a plan cannot run."""
        return {
            index: found.iteration_ns if isinstance(found, Trial) else None
            for index, found in self.history.items()
        }


def go_on() -> None:
    """A search that nobody pauses."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Budget, seed, and what an interrupted search knows.

    ``trials``: evaluations at most, plans that turn out not to fit included; None is the search's
    own default (``exhaustive``: until proven; the others: DEFAULT_TRIALS).
    ``progress`` is called after each evaluation that gave a time, ``pause`` after every one; what
    they raise ends the search, and given the same ``record`` another one goes on where it was.
    """

    trials: int | None = None
    seed: int = 0
    progress: Callable[[Trial], None] | None = None
    pause: Callable[[], None] = go_on
    record: Record | None = None

    def __post_init__(self) -> None:
        if self.trials is not None:
            require_positive_int("search", "trials", self.trials)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise InputError(f"search.seed must be a whole number ≥ 0, got {self.seed!r}.")


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The chosen trial, all trials in the order they were made, and how sure the choice is.

    ``optimality`` is ``proven`` when every plan of the pool was evaluated or has a lower bound
    above the tie band of the best. ``evaluations`` counts calls of ``Problem.evaluate``;
    ``infeasible`` counts, by reason, the plans that could not run; ``pruned`` the plans that a
    bound ruled out. ``space_size`` is the pool's size, or the whole space's after ``within``.
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
    """Return the tensor-parallel collectives of one layer, forward and backward."""
    rows, *pieces = plan.slices
    return rows * sum(pieces)


def choose_best(trials: Iterable[Trial]) -> Trial:
    """Return, of the trials within 1 % of the fastest: least memory (less than 1 % more is no
    more), fewest slices, fastest."""
    made = tuple(trials)
    fastest_ns = min(trial.iteration_ns for trial in made)
    close = [trial for trial in made if ties(trial.iteration_ns, fastest_ns)]
    least_bytes = min(trial.peak_bytes for trial in close)
    return min((t for t in close if ties(t.peak_bytes, least_bytes)), key=_rank)


def _rank(trial: Trial) -> tuple[int, int, int]:
    return piece_count(trial.plan), trial.iteration_ns, trial.index
