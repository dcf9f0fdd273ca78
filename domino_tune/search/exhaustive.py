"""Exhaustive search: find the fastest plan, evaluate only what a lower bound does not rule out."""

from __future__ import annotations

from domino_tune.search.ledger import Ledger
from domino_tune.search.problem import Problem, SearchOptions, SearchResult


def search_exhaustive(problem: Problem, options: SearchOptions) -> SearchResult:
    """Evaluate in ascending order of bound; stop when the next bound is above the tie band.

    No other order needs fewer evaluations with these bounds: a plan is evaluated before the
    optimum only if its bound is not above the optimum. Raise InfeasiblePlanError when no plan can
    run.
    """
    ledger = Ledger(problem, options, trials=options.trials)
    bounds = [problem.lower_bound_ns(plan) for plan in ledger.plans]
    ascending = sorted(range(len(bounds)), key=bounds.__getitem__)
    for evaluated, index in enumerate(ascending):
        if index in ledger.record.history:
            continue
        if ledger.ruled_out(bounds[index]):
            return ledger.result(pruned=len(bounds) - evaluated)
        if ledger.spent:
            break
        ledger.evaluate(index)
    return ledger.result()
