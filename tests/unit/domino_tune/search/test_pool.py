"""Which plans a measured search chooses from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from domino_tune.base.progress import no_progress
from domino_tune.requests import MeasureRequest
from domino_tune.search import Evaluation, Space, SpaceSpec, enumerate_plans
from domino_tune.search.pool import (
    POOL,
    SLOWER,
    ChosenPool,
    _promising,
    baseline_of,
    choose_pool,
    measured_pool,
)
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, Workload
from tests.unit.domino_tune.search.real_machine import MODEL

CASE = Case(
    model=MODEL, workload=Workload(seq_length=1024, micro_batch_size=8),
    cluster=ClusterSpec(tp=4), profile=load_profile("h100-dgx"),
)  # fmt: skip
FEW = SpaceSpec(row_slices=(1, 2), col_slices=(1, 2), dgrad_slices=(), orders=("intra",))


def chosen(
    search: str, spec: SpaceSpec, trials: int | None = None, measured: tuple[SlicePlan, ...] = ()
) -> ChosenPool:
    space = enumerate_plans(CASE.model, CASE.workload, spec=spec)
    request = MeasureRequest(
        model="gpt3-13b", profile="h100-dgx", tp=4, seq_length=1024, micro_batch_size=8,
        search=search, trials=trials,
    )  # fmt: skip
    problem = SimulatedPlans(case=CASE, plans=space)
    return choose_pool(problem, space, request, measured, no_progress)


def test_a_small_space_is_taken_whole_behind_the_baseline() -> None:
    for search in ("bayes", "exhaustive"):
        found = chosen(search, FEW)
        assert found.whole
        assert found.pool.plans == (baseline_of(CASE), *found.space)
        assert found.pool.plans[0].sequence_parallel


def test_an_exhaustive_search_measures_as_many_as_it_may() -> None:
    """The baseline counts; without ``--trials``, 64 plans are the most."""
    total = len(chosen("bayes", FEW).space) + 1
    assert chosen("exhaustive", FEW, trials=total).whole
    with pytest.raises(InputError, match=f"would measure {total} plans, the baseline included"):
        chosen("exhaustive", FEW, trials=total - 1)
    many = SpaceSpec(row_slices=(1, 2, 4), col_slices=(1, 2, 4), dgrad_slices=())
    with pytest.raises(InputError, match="--trials"):
        chosen("exhaustive", many)


class Cramped(SimulatedPlans):
    """A machine whose memory holds plans of at most ``rows`` slices."""

    rows: int = 1

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        if plan.row_slices > self.rows:
            raise InfeasiblePlanError(f"{plan.row_slices} slices", reason="memory")
        return super().evaluate(plan)


def test_plans_that_do_not_fit_stay_out_and_the_first_says_why_where_none_does() -> None:
    problem = Cramped(case=CASE, plans=enumerate_plans(CASE.model, CASE.workload, spec=FEW))
    plans = [replace(SlicePlan(), row_slices=rows) for rows in (2, 1, 4)]
    assert measured_pool(problem, plans).plans == (baseline_of(CASE), plans[1])
    problem.rows = 0
    with pytest.raises(InfeasiblePlanError, match="2 slices"):
        measured_pool(problem, plans)


@cache
def large() -> tuple[SimulatedPlans, Space]:
    spec = SpaceSpec(row_slices=(1, 2, 4, 8), col_slices=(1, 2, 4, 8), dgrad_slices=())
    space = enumerate_plans(CASE.model, CASE.workload, spec=spec)
    return SimulatedPlans(case=CASE, plans=space), space


def test_the_pool_of_a_large_space_has_the_best_of_every_promising_cut() -> None:
    problem, space = large()
    assert len(space) > POOL
    picked = _promising(problem)
    assert len(set(picked)) == len(picked) == POOL
    ranked = sorted(space, key=problem.prior_ns)
    best_ns = problem.prior_ns(ranked[0])
    of_cut: dict[tuple[object, ...], SlicePlan] = {}
    for plan in ranked:
        if problem.prior_ns(plan) <= SLOWER * best_ns:
            cut = plan.row_slices, plan.attn_col_slices, plan.mlp_col_slices
            of_cut.setdefault((cut, plan.order, plan.merge_wgrad), plan)
    assert set(list(of_cut.values())[: POOL // 2]) <= set(picked)
    assert set(ranked[:20]) <= set(picked)


def test_cuts_leave_half_of_a_pool_to_the_best_estimates_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("domino_tune.search.pool.POOL", 16)
    monkeypatch.setattr("domino_tune.search.pool.SEARCHED", 2)
    problem, space = large()
    picked = _promising(problem)
    front, ranked = picked[: 2 + 16 // 2], sorted(space, key=problem.prior_ns)
    assert picked == [*front, *(plan for plan in ranked if plan not in front)][:16]
