"""Names of ops and values, layers of segments, and what a legal order may not do."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.case import Case
from simulator.errors import ScheduleError
from simulator.ops import Collective, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.schedule import (
    COMPUTE,
    DP,
    TP,
    OpTemplate,
    Repeat,
    Schedule,
    Segment,
    Timeline,
    check_order,
    is_weight,
)
from simulator.specs import ClusterSpec, Workload
from simulator.values import Ref
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost

COPY = Pointwise("copy", 8, 8)


def template(
    role: str, lane: int = COMPUTE, *, row: int = -1, offset: int = 0,
    reads: tuple[Ref, ...] = (), writes: tuple[Ref, ...] = (), weights: tuple[str, ...] = (),
    piece: int = -1,
) -> OpTemplate:  # fmt: skip
    return OpTemplate(role, row, COPY, lane, offset, reads, writes, weights, piece)


def schedule(*segments: Segment, count: int = 1, first_micro: int = 0, micros: int = 1) -> Schedule:
    part = Repeat(segments=segments, count=count, first_micro=first_micro)
    return Schedule(parts=(part,), micros=micros)


def test_a_segment_counts_up_or_from_the_top() -> None:
    up = Segment(templates=(), first=1, stride=2)
    assert [up.layer(repetition, 1) for repetition in range(3)] == [2, 4, 6]
    down = Segment(templates=(), first=1, stride=2, mirror=9)
    assert [down.layer(repetition, 1) for repetition in range(3)] == [7, 5, 3]
    assert Segment(templates=(), mirror=0).layer(0, 0) == 0


def test_ops_are_named_by_micro_batch_layer_slice_role_and_piece() -> None:
    inside = template("mlp.fc2", row=1, piece=0, reads=(Ref("a", layer=1),), writes=(Ref("b"),),
                      weights=("w.mlp.fc2",))  # fmt: skip
    edge = template("embed", row=0, weights=("w.embed",), writes=(Ref("e"),))
    made = schedule(Segment(templates=(inside,), count=2, first=3), Segment(templates=(edge,)))
    ops = list(made.ops())
    assert [op.name for op in ops] == ["l3.s1.mlp.fc2.0", "l4.s1.mlp.fc2.0", "s0.embed"]
    assert ops[1].reads == ("l5.a", "l4.w.mlp.fc2")
    assert ops[1].writes == ("l4.b",)
    assert (ops[1].layer, ops[1].slice, ops[1].piece, ops[1].micro) == (4, 1, 0, 0)
    assert ops[2].reads == ("w.embed",)
    assert [is_weight(name) for name in (*ops[1].reads, *ops[2].reads)] == [False, True, True]
    assert len(made) == 3
    assert [t.role for t in made.templates()] == ["mlp.fc2", "mlp.fc2", "embed"]


def test_micro_batches_have_numbers_where_there_are_several() -> None:
    one = Segment(templates=(template("attn.norm", row=0, writes=(Ref("b"),)),))
    several = schedule(one, count=2, first_micro=1, micros=3)
    assert [op.name for op in several.ops()] == ["m1.l0.s0.attn.norm", "m2.l0.s0.attn.norm"]
    assert [op.writes for op in several.ops()] == [("m1.l0.b",), ("m2.l0.b",)]
    assert len(several) == 2
    assert len(list(several.templates())) == 2


def test_lanes_in_use_always_have_compute() -> None:
    assert schedule().lanes() == (COMPUTE,)
    made = schedule(Segment(templates=(template("dp.ar", DP), template("attn.norm"))))
    assert made.lanes() == (COMPUTE, DP)


def chain(*templates: OpTemplate) -> None:
    check_order(schedule(Segment(templates=templates)))


def written(role: str, lane: int, value: str, *read: str) -> OpTemplate:
    return template(role, lane, reads=tuple(Ref(name) for name in read), writes=(Ref(value),))


def test_a_collective_reads_compute_and_its_own_lane() -> None:
    source = written("a", COMPUTE, "a")
    chain(source, written("b", TP, "b", "a"), written("c", TP, "c", "b"))
    chain(source, written("b", TP, "b", "a"), written("c", COMPUTE, "c", "b"))
    with pytest.raises(ScheduleError, match=r"'c' reads 'l0\.b' from another comm lane"):
        chain(source, written("b", TP, "b", "a"), written("c", DP, "c", "b"))


def test_ops_and_values_come_once() -> None:
    with pytest.raises(ScheduleError, match=r"Value 'l0\.a' is written twice"):
        chain(written("a", COMPUTE, "a"), written("b", COMPUTE, "a"))
    with pytest.raises(ScheduleError, match="Op 'a' is issued twice"):
        chain(written("a", COMPUTE, "a"), written("a", COMPUTE, "b"))
    with pytest.raises(ScheduleError, match=r"reads 'l0\.b' before it is written"):
        chain(written("a", COMPUTE, "a", "b"))


def test_shifting_moves_an_op_by_layers() -> None:
    moved = template("attn.norm", offset=2).shifted(3)
    assert moved.offset == 5
    assert moved.shifted(0) is moved


# Breakdown, roles and critical path of a timeline, on one small enough to draw --------------------

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
