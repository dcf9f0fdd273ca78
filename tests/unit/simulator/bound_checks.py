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
from simulator.cost import Changes, CostModel
from simulator.errors import DominoTuneError
from simulator.plan import MEGATRON
from simulator.predict import predict
from simulator.profile import Profile
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
    "a100": lambda: load_profile("a100-sxm"),
}  # fmt: skip


@cache
def cost_of(machine: str, contention: float, cuda_graph: bool) -> CostModel:
    """Shared, so that look-ups are made once."""
    changes = Changes(contention=contention)
    return CostModel(MACHINES[machine](), changes=changes, cuda_graph=cuda_graph)


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
            bounds, plan = Bounds(one), random_plan(rng, one, rng.choice(KINDS[2:]))
            time_ns, any_order_ns = predict(one, plan).makespan_ns, bounds.of([plan])[0]
            assert bounds.of([plan, MEGATRON])[0] == any_order_ns, plan.label
            bound_ns = bounds.lower_bound_ns(plan)
            assert bounds.lower_bounds_ns([MEGATRON, plan])[1] == bound_ns, plan.label
            assert any_order_ns <= bound_ns <= time_ns, plan.label


def _capped(case: Case, rng: random.Random) -> Case:
    """The case under a power cap, where its machine can have one."""
    if case.profile.power is None:
        return case
    cluster = replace(case.cluster, power_cap_w=rng.choice((300.0, 450.0)))
    return with_cost(replace(case, cluster=cluster), case.cost)
