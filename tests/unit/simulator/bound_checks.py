"""Bounds that know an order, held against plays of random cases on several machines."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.cost import CostModel, Factors
from simulator.errors import DominoTuneError
from simulator.lookup import Provenance
from simulator.predict import predict
from simulator.profile import LaunchSection, Profile
from tests.unit.simulator.cases import (
    KINDS,
    bundled_profile,
    hot_profile,
    random_case,
    random_plan,
    uneven_profile,
    with_cost,
)

MACHINES: Final[dict[str, Callable[[], Profile]]] = {
    "h100": bundled_profile, "hot": hot_profile, "uneven": uneven_profile,
    "h200": lambda: load_profile("h200-sxm"), "b200": lambda: load_profile("b200-sxm"),
    "a100": lambda: load_profile("a100-sxm"), "inline": lambda: inline_profile(),
}  # fmt: skip


def inline_profile() -> Profile:
    """An H100 whose ops contain their launches, of 20 us."""
    costs = dict.fromkeys(("gemm", "attention", "pointwise"), 20.0)
    launch = LaunchSection(
        mode="inline", cost_us=costs, provenance=Provenance(kind="measured", source="a test")
    )
    return replace(bundled_profile(), launch=launch)


@cache
def cost_of(machine: str, contention: float, cuda_graph: bool) -> CostModel:
    """Shared, so that look-ups are made once."""
    factors = Factors(contention=contention)
    return CostModel(MACHINES[machine](), factors=factors, cuda_graph=cuda_graph)


def check_space_bounds(seed: int) -> None:
    """A plan takes at least the bound of its order, which is at least that of any order, by itself
    and among others."""
    rng = random.Random(seed)
    cost = cost_of(
        rng.choice(tuple(MACHINES)), rng.choice((0.0, 1.0, 1.0, 2.0, 4.0)), rng.random() < 0.2
    )
    case = random_case(rng, layers=rng.choice((1, 2, 3, 6, 13)), micros=3, cost=cost)
    with suppress(DominoTuneError):  # what a machine cannot price
        for one in (case, _capped(case, rng)):
            bounds = Bounds(one)
            plans = [random_plan(rng, one, rng.choice(KINDS[2:])) for _ in range(4)]
            any_order_ns, bounds_ns = bounds.any_order_ns(plans), bounds.lower_bounds_ns(plans)
            for plan, quick_ns, bound_ns in zip(plans, any_order_ns, bounds_ns, strict=True):
                alone = Bounds(one)
                assert alone.any_order_ns([plan])[0] == quick_ns <= bound_ns, plan.label
                assert alone.lower_bound_ns(plan) == bound_ns, plan.label
            makespan_ns = predict(one, plans[0]).makespan_ns
            floors_ns = bounds.floors_ns(tuple(plans))
            assert max(bounds_ns[0], floors_ns[0]) <= makespan_ns, plans[0].label
            assert floors_ns == [Bounds(one).floors_ns((plan,))[0] for plan in plans]


def _capped(case: Case, rng: random.Random) -> Case:
    """The case under a power cap, which no clock may keep, where its machine can have one."""
    law = case.profile.power
    if law is None:
        return case
    cap_w = rng.choice((300.0, 450.0, law.idle_w + 30))
    cluster = replace(case.cluster, power_cap_w=cap_w)
    return with_cost(replace(case, cluster=cluster), case.cost)
