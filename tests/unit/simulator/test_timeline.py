"""Breakdown, roles and critical path of a timeline, on one small enough to draw."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.case import Case
from simulator.ops import Collective, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.specs import ClusterSpec, Workload
from simulator.timeline import Timeline
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost

# compute  |--a--|--b--|       |--c--|  |--d--|
# tp             |------ar-----|
SPANS = {
    "a": (0, 10), "ar": (10, 40), "b": (10, 22), "c": (40, 50), "d": (55, 60),
}  # fmt: skip


def drawn() -> Timeline:
    templates = tuple(
        OpTemplate(
            name, -1, Collective("all_reduce", 8, 1, 8) if name == "ar" else Pointwise("x", 0, 0),
            TP if name == "ar" else COMPUTE, 0, (), (),
        )
        for name in SPANS
    )  # fmt: skip
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
    start, end = zip(*SPANS.values(), strict=True)
    return Timeline(schedule=schedule, start_ns=start, end_ns=end)


def test_breakdown_adds_up() -> None:
    parts = drawn().breakdown
    assert parts._asdict() == {
        "makespan_ns": 60, "compute_ns": 37, "comm_ns": 30, "exposed_comm_ns": 18, "idle_ns": 5,
    }  # fmt: skip
    assert parts.hidden_comm_fraction == pytest.approx(12 / 30)
    assert drawn().by_role == {"ar": 30, "b": 12, "a": 10, "c": 10, "d": 5}


def test_lanes_in_order() -> None:
    lanes = [[(op.role, a, b) for op, a, b in drawn().lane(lane)] for lane in (COMPUTE, TP)]
    assert [role for role, _, _ in lanes[0]] == ["a", "b", "c", "d"]
    assert lanes[1] == [("ar", 10, 40)]


def test_critical_path_goes_through_the_all_reduce_and_over_the_hosts_gap() -> None:
    timeline = drawn()
    assert [timeline.ops[index].role for index in timeline.critical_path] == ["a", "ar", "c", "d"]


def test_an_empty_timeline_takes_no_time() -> None:
    timeline = Timeline(schedule=Schedule(parts=()), start_ns=(), end_ns=())
    assert timeline.makespan_ns == 0
    assert timeline.critical_path == ()
    assert timeline.breakdown.hidden_comm_fraction == 1.0


@pytest.mark.parametrize("plan", [MEGATRON, SlicePlan(row_slices=3), SlicePlan(mlp_col_slices=4)])
def test_without_a_host_the_critical_path_has_no_gap(plan: SlicePlan) -> None:
    case = with_cost(
        Case(
            model=MODELS["llama2-7b"],
            workload=Workload(seq_length=512, micro_batch_size=4, grad_accumulation=2),
            cluster=ClusterSpec(tp=8, dp=2),
            profile=bundled_profile(),
        ),
        cost_model(1.0, True),
    )
    timeline = simulate(case, plan)
    path = timeline.critical_path
    assert timeline.start_ns[path[0]] == 0
    assert timeline.end_ns[path[-1]] == timeline.makespan_ns
    assert all(timeline.end_ns[a] == timeline.start_ns[b] for a, b in pairwise(path))
    assert timeline.breakdown.idle_ns == 0
