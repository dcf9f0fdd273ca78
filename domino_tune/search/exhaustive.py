"""Exhaustive search: find the fastest plan, evaluate only what a lower bound does not rule out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

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
    """A plan's exact lower bound (ns), and the plan's number."""

    bound_ns: int
    number: int


def by_bound(problem: Problem) -> Iterator[Look]:
    """Yield the plans in ascending order of their exact bounds, which are computed when quick ones
    are not enough to tell."""
    quick_ns = np.asarray(problem.quick_bounds_ns)
    looks: list[Look] = []
    for number in np.argsort(quick_ns, kind="stable").tolist():
        while looks and looks[0].bound_ns < quick_ns[number]:
            yield heappop(looks)
        heappush(looks, Look(problem.lower_bound_ns(problem.plans[number]), number))
    while looks:
        yield heappop(looks)
