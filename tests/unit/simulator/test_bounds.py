"""Bounds of pipelines: never above the truth, and near enough to rule plans out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.search.simulated import space_of
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.curves import PASSES
from simulator.errors import InfeasiblePlanError
from simulator.estimate import Estimates
from simulator.implementation import Implementation
from simulator.lookup import Provenance
from simulator.memory import least_peak_bytes, peak_bytes
from simulator.plan import SlicePlan
from simulator.power import RowClock
from simulator.predict import predict
from simulator.profile import LaunchSection
from tests.unit.simulator.cases import (
    cost_model,
    hot_profile,
    random_case,
    random_plan,
)
from tests.unit.simulator.pipeline.test_pipeline import CASES, piped


def cases(given: dict[str, Any]) -> list[Case]:
    """The case at the clock that power leaves, and at the clock of its timings."""
    case = piped(**{"micro_batch_size": 4, **given})
    return [case, replace(case, profile=replace(case.profile, power=None))]


@pytest.mark.sampled(count=6)
@pytest.mark.parametrize("first", range(0, 1600, 400))
@pytest.mark.parametrize("given", CASES, ids=str)
def test_bounds_are_not_above_predictions(given: dict[str, Any], first: int) -> None:
    for case in cases(given):
        bounds, estimate = Bounds(case), Estimates(case)
        for plan in list(space_of(case, None))[first::1600]:
            found = predict(case, plan).makespan_ns
            assert bounds.lower_bound_ns(plan) <= found
            assert bounds.lower_bound_ns(plan) > 0.6 * found
            assert bounds.floors_ns((plan,))[0] <= found
            assert estimate.prior_ns(plan) == pytest.approx(found, rel=0.35)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_the_rank_with_the_head_may_be_critical(schedule: str) -> None:
    """It is the first one where the stages are folded to a V."""
    case = piped(vpp=2, pp_schedule=schedule)
    heads = [rank for rank, chunks in enumerate(case.chunks) if any(one.head for one in chunks)]
    assert heads == [0 if schedule == "dualpipev" else case.cluster.pp - 1]
    assert set(heads) <= set(case.critical_ranks)


def test_where_messages_block_each_pass_begins_with_its_host() -> None:
    """The host takes longer than the device ahead and not on the way back: the longer of both
    counts in each."""
    case, plan, tight = cases({})[1], SlicePlan(), 0
    for cost_us in range(60, 200, 10):
        costs = dict.fromkeys(("gemm", "attention", "pointwise"), float(cost_us))
        provenance = Provenance(kind="measured", source="a test")
        launch = LaunchSection(mode="async", cost_us=costs, provenance=provenance)
        slow = replace(
            case, profile=replace(case.profile, launch=launch),
            workload=replace(case.workload, implementation=Implementation()),
        )  # fmt: skip
        bounds, found = Bounds(slow), predict(slow, plan).makespan_ns
        place = bounds._critical[-1]
        rank = place.rank
        ahead, back = (rank.passes([plan], which) for which in PASSES)
        both_ns = float((ahead.alone_ns + back.alone_ns)[0, 0])
        least_ns = max(
            float((ahead.least_ns + back.least_ns)[0, 0]),
            float((ahead.launch_ns + back.launch_ns)[0]),
        )
        tight += both_ns > 1.02 * least_ns
        way_ns, back_ns, _ = bounds._fills_ns(place, [plan], [plan])
        filled_ns = float((way_ns + back_ns)[0, 0]) - float(rank.edges(plan).sums_ns[0])
        device_ns = slow.workload.grad_accumulation * both_ns
        assert device_ns + filled_ns <= bounds.lower_bound_ns(plan) + 10 <= found
    assert tight > 1


@pytest.mark.parametrize("given", CASES[:6], ids=str)
def test_the_least_memory_is_not_above_any_plans(given: dict[str, Any]) -> None:
    case = cases(given)[0]
    least = least_peak_bytes(case)
    for plan in list(space_of(case, None))[::900]:
        try:
            assert least <= peak_bytes(case, plan)
        except InfeasiblePlanError:
            continue


# Where two curves over the clock cross, and the bound that follows --------------------------------

COST = cost_model(1.0, cuda_graph=False)


@pytest.mark.sampled(count=10)
@pytest.mark.parametrize("seed", range(40))
def test_the_bound_holds_under_every_law(seed: int) -> None:
    rng = random.Random(seed)
    drawn = random_case(rng, layers=rng.randint(1, 5), micros=rng.randint(1, 3), cost=COST)
    known = hot_profile().power
    assert known is not None
    families = tuple(
        replace(one, draw_w=one.draw_w * rng.choice((0.5, 1.0, 2.0)), elasticity=rng.random())
        for one in known.families
    )
    law = replace(
        known, families=families, exponent=rng.choice((1.0, 2.0, 3.0)),
        row_clocks=(
            RowClock("attention", 0.0, rng.uniform(1000, 1980)),
            RowClock("gemm", 0.0, rng.uniform(1500, 1980)),
            RowClock("gemm", rng.uniform(1, 100), rng.uniform(1500, 1980)),
            RowClock("gemm", rng.uniform(200, 2000), rng.uniform(900, 1500)),
        ),
    )  # fmt: skip
    limits = {
        "power_cap_w": float(rng.choice((140, 300, 450, 700))),
        "clock_mhz": rng.choice((0, 900, 1500)),
    }
    case = Case(
        model=drawn.model, workload=drawn.workload, profile=replace(hot_profile(), power=law),
        cluster=replace(drawn.cluster, **limits),  # type: ignore[arg-type]
    )  # fmt: skip
    bounds, estimate = Bounds(case), Estimates(case)
    for kind in ("intra eager", "inter deferred", "paper eager", "greedy fill"):
        plan = random_plan(rng, case, kind)
        assert bounds.lower_bound_ns(plan) <= predict(case, plan).makespan_ns, plan.label
        assert estimate.prior_ns(plan) > 0
