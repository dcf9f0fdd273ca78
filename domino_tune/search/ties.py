"""Which of several trials is best: the fastest, or what is better otherwise and as good as it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from domino_tune.search.problem import Trial
from simulator.plan import SlicePlan

TIE_PERCENT: Final = 1


def ties(time_ns: int, fastest_ns: int) -> bool:
    """Return whether ``time_ns`` is within 1 % of ``fastest_ns``, in exact integers."""
    return 100 * time_ns <= (100 + TIE_PERCENT) * fastest_ns


def piece_count(plan: SlicePlan) -> int:
    """Return the tensor-parallel collectives of one layer, forward and backward."""
    rows, *pieces = plan.slices
    return rows * sum(pieces)


def choose_best(trials: Iterable[Trial]) -> Trial:
    """Return, of the trials within 1 % of the fastest: least memory, fewest slices, fastest."""
    made = tuple(trials)
    fastest_ns = min(trial.iteration_ns for trial in made)
    close = (trial for trial in made if ties(trial.iteration_ns, fastest_ns))
    return min(close, key=_rank)


def _rank(trial: Trial) -> tuple[int, int, int, int]:
    return trial.peak_bytes, piece_count(trial.plan), trial.iteration_ns, trial.index
