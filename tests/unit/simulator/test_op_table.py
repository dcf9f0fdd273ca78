"""What plans share depends on no plan that was made before, and is entered once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from simulator import templates
from simulator.build import build_schedule
from simulator.case import Case
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.memory import live_peaks
from simulator.op_table import listing_of
from simulator.plan import SlicePlan
from simulator.schedule import Schedule
from tests.unit.simulator.cases import KINDS, cost_model, random_case, random_plan

Planned = list[tuple[SlicePlan, LayerOrder]]


def several_plans(seed: int) -> tuple[Case, Planned]:
    """A small case, and plans of every kind with their orders."""
    case = random_case(random.Random(seed), layers=5, micros=3, cost=cost_model(1.0, False))
    plans = [random_plan(random.Random(seed + n), case, kind) for n, kind in enumerate(KINDS * 2)]
    return case, [(plan, order_of(case, plan)) for plan in plans]


def built(case: Case, plan: SlicePlan, order: LayerOrder) -> Schedule:
    return build_schedule(case.model, case.workload, case.cluster, plan, order)


@pytest.mark.parametrize("seed", range(12))
def test_a_schedule_is_the_same_whatever_was_built_before(seed: int) -> None:
    case, plans = several_plans(seed)
    warm = [built(case, *planned) for planned in plans]
    for planned, found in zip(plans, warm, strict=True):
        templates._shared_by.cache_clear()
        cold = built(case, *planned)
        assert found == cold
        assert live_peaks(found) == live_peaks(cold)
        assert listing_of(found).counts == listing_of(cold).counts
        assert order_of(case, planned[0]) == planned[1]


def test_threads_enter_ops_one_at_a_time() -> None:
    case, plans = several_plans(0)
    expected = [live_peaks(built(case, *planned)) for planned in plans]
    templates._shared_by.cache_clear()
    schedules = [built(case, *planned) for planned in plans]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(live_peaks, schedules)) == expected
