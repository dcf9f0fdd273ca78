"""Random search: a seeded sample of plans without replacement. The reference for others."""

from __future__ import annotations

import random

from domino_tune.search.ledger import Ledger
from domino_tune.search.problem import DEFAULT_TRIALS, Problem, SearchOptions, SearchResult


def search_random(problem: Problem, options: SearchOptions) -> SearchResult:
    """Evaluate ``trials`` plans drawn at random. Raise InfeasiblePlanError when none can run."""
    ledger = Ledger(problem, options, trials=options.trials or DEFAULT_TRIALS)
    drawn = random.Random(options.seed)
    for index in drawn.sample(range(len(ledger.plans)), len(ledger.plans)):
        if ledger.spent:
            break
        if index not in ledger.record.history:
            ledger.evaluate(index)
    return ledger.result()
