"""The periodic shortcut against the full simulation, as a function of a seed."""

from __future__ import annotations

import random

from simulator.build import build_schedule
from simulator.compiler import compile_program
from simulator.cost import CostModel
from simulator.engine import play
from simulator.greedy import order_of
from simulator.launch import Launch
from simulator.program import REST
from tests.support.by_hand import totals
from tests.unit.simulator.cases import KINDS, random_case, random_cost, random_plan


def check_shortcut_is_exact(seed: int, *, layers: int = 24, record_ops: int = 3000) -> None:
    """Same totals with and without; short schedules also by the engine of record."""
    rng = random.Random(seed)
    cost = _with_other_host(rng, random_cost(rng))
    case = random_case(rng, layers=layers, micros=5, cost=cost)
    plan = random_plan(rng, case, rng.choice(KINDS))
    order = order_of(case, plan)
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order)
    program = compile_program(schedule, cost)
    ops = [step for step in program.root.steps() if step.family and step.part != REST]
    assert len(ops) == len(schedule)
    whole = totals(program, shortcut=False)
    assert totals(program) == whole
    if len(schedule) <= record_ops:
        got = play(schedule, program).breakdown
        assert got[:4] == whole[:4]


def _with_other_host(rng: random.Random, cost: CostModel) -> CostModel:
    """One in two with another launch mode, cost or queue depth than the profile's."""
    if cost.launch.mode == "none" or rng.random() < 0.5:
        return cost
    other = CostModel(cost.profile, factors=cost.change.factors)
    factor = rng.choice((0.05, 0.5, 1.0, 3.0))
    other.launch = Launch(
        mode=rng.choice(("async", "async", "inline")),
        cost_ns={kind: round(ns * factor) for kind, ns in cost.launch.cost_ns.items()},
        queue_depth=rng.choice((1, 8, 60, 300, 1024)),
    )
    return other
