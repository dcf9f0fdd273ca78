"""What a search of simulated plans still has to look at."""

from __future__ import annotations

import pytest

from domino_tune.search.problem import TIE_PERCENT, Record, Trial
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.search.space import SpaceSpec, enumerate_plans
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.specs import ClusterSpec, Workload
from tests.unit.domino_tune.search.real_machine import MODEL

CASE = Case(
    model=MODEL, workload=Workload(seq_length=1024, micro_batch_size=8),
    cluster=ClusterSpec(tp=4), profile=load_profile("h100-dgx"),
)  # fmt: skip
SPEC = SpaceSpec(row_slices=(1, 2, 4), col_slices=(1, 2, 4))


@pytest.mark.parametrize("looked_at", [1, 7, 40])
def test_plans_that_a_bound_does_not_rule_out_are_left(looked_at: int) -> None:
    """Those that may tie with the best so far, too, which wins over them by memory alone."""
    plans = enumerate_plans(CASE.model, CASE.workload, tp=4, spec=SPEC)
    problem, record = SimulatedPlans(case=CASE, plans=plans), Record()
    assert problem.left(record) is None
    bounds_ns = problem.lower_bounds_ns([*plans])
    best_first = sorted(range(len(plans)), key=bounds_ns.__getitem__)
    for index in best_first[:looked_at]:
        found = problem.evaluate(plans[index])
        record.history[index] = Trial(
            index=index, plan=plans[index], iteration_ns=found.iteration_ns,
            peak_bytes=found.peak_bytes,
        )  # fmt: skip
    least_ns = min(trial.iteration_ns for trial in record.trials)
    may_tie = {
        index for index, bound_ns in enumerate(bounds_ns)
        if bound_ns <= least_ns * (1 + TIE_PERCENT / 100)
    }  # fmt: skip
    surely = {index for index, bound_ns in enumerate(bounds_ns) if bound_ns <= least_ns}
    assert problem.left(record) == len(may_tie - {*record.history})
    assert looked_at == 1 or surely < may_tie
