"""Searches for the best plan: exhaustive, Bayesian, random, over the simulator or over real runs.

May import store, requests, base and the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from domino_tune.search.bayes import search_bayes
from domino_tune.search.exhaustive import search_exhaustive
from domino_tune.search.problem import (
    DEFAULT_TRIALS,
    Evaluation,
    Problem,
    Record,
    SearchOptions,
    SearchResult,
    Trial,
    choose_best,
)
from domino_tune.search.random_sample import search_random
from domino_tune.search.simulated import slicings_of
from domino_tune.search.space import Space, SpaceSpec, enumerate_plans

__all__ = [
    "DEFAULT_TRIALS", "SEARCHES", "Evaluation", "Problem", "Record", "SearchOptions",
    "SearchResult", "Space", "SpaceSpec", "Trial", "choose_best", "enumerate_plans", "slicings_of",
]  # fmt: skip

Search = Callable[[Problem, SearchOptions], SearchResult]
SEARCHES: Final[dict[str, Search]] = {
    "exhaustive": search_exhaustive,
    "bayes": search_bayes,
    "random": search_random,
}
