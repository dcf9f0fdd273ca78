"""Where two curves over the clock cross, and the bound that follows."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from operator import ge

import pytest

from simulator.case import Case
from simulator.clocked_form import ClockedForm, _first, closed_form
from simulator.closed_form import ClosedForm
from simulator.power import RowClock
from simulator.predict import predict
from tests.unit.simulator.cases import (
    bundled_profile,
    cost_model,
    hot_profile,
    random_case,
    random_plan,
)

COST = cost_model(1.0, cuda_graph=False)


def test_the_first_clock_that_holds_is_found_from_anywhere() -> None:
    for count in range(1, 30):
        clocks = range(1000, 1000 - 15 * count, -15)
        for answer in range(count + 1):
            for near in range(count + 1):
                last = 1000 - 15 * answer
                assert _first(clocks, partial(ge, last), near) == answer, (count, answer, near)


def test_without_a_law_of_power_the_plain_forms_serve() -> None:
    case = random_case(random.Random(0), layers=2, micros=1, cost=COST)
    assert isinstance(closed_form(replace(case, profile=bundled_profile())), ClosedForm)
    assert isinstance(closed_form(replace(case, profile=hot_profile())), ClockedForm)


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
    form = closed_form(case)
    for kind in ("intra eager", "inter deferred", "paper eager", "greedy fill"):
        plan = random_plan(rng, case, kind)
        assert form.lower_bound_ns(plan) <= predict(case, plan).makespan_ns, plan.label
        assert form.prior_ns(plan) > 0
