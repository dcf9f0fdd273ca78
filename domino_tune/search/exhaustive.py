"""Exhaustive search: find the fastest plan, evaluate only what a lower bound does not rule out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from domino_tune.search.ledger import Ledger
from domino_tune.search.problem import Problem, SearchOptions, SearchResult, outcome


def search_exhaustive(problem: Problem, options: SearchOptions) -> SearchResult:
    """Evaluate in ascending order of bound; stop when the next bound is above the tie band.

    No other order needs fewer evaluations with these bounds: a plan is evaluated before the
    optimum only if its bound is not above the optimum. Raise InfeasiblePlanError when no plan can
    run.
    """
    ledger = Ledger(problem, options, trials=options.trials)
    known = set(ledger.record.history)
    looks = options.ahead(
        lambda look: outcome(problem, ledger.plans[look.number]),
        (look for look in by_bound(problem) if look.number not in known),
    )
    with closing(looks):  # type: ignore[type-var]  # both ways to look ahead are generators
        for look, cost in looks:
            if ledger.ruled_out(look.bound_ns):
                return ledger.result(pruned=len(ledger.plans) - ledger.evaluations)
            if ledger.spent:
                break
            ledger.record_outcome(look.number, cost())
    return ledger.result()


class Look(NamedTuple):
    """A plan's lower bound (ns), whether it is the exact one, and the plan's number."""

    bound_ns: int
    exact: bool
    number: int


def by_bound(problem: Problem) -> Iterator[Look]:
    """Yield the plans in ascending order of their exact bounds, which are computed when quick ones
    are not enough to tell."""
    looks = [Look(bound_ns, False, i) for i, bound_ns in enumerate(problem.quick_bounds_ns)]
    heapify(looks)
    while looks:
        first = looks[0]
        if first.exact:
            yield heappop(looks)
        else:
            bound_ns = problem.lower_bound_ns(problem.plans[first.number])
            heapreplace(looks, Look(bound_ns, True, first.number))
