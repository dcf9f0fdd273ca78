"""Which of several trials is best: the fastest, or what is better otherwise and as good as it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from domino_tune.search.problem import Trial
from simulator.plan import SlicePlan

TIE_PERCENT: Final = 1


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
