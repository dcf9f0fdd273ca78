"""Names of ops and values, layers of segments, and what a legal order may not do."""

from __future__ import annotations

import pytest

from simulator.errors import ScheduleError
from simulator.ops import Pointwise
from simulator.schedule import (
    COMPUTE,
    DP,
    TP,
    OpTemplate,
    Ref,
    Repeat,
    Schedule,
    Segment,
    check_order,
    is_weight,
)

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
    inside = template("mlp.fc2", row=1, piece=0, reads=(Ref(1, "a"),), writes=(Ref(0, "b"),),
                      weights=("w.mlp.fc2",))  # fmt: skip
    edge = template("embed", row=0, weights=("w.embed",), writes=(Ref(0, "e"),))
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
    one = Segment(templates=(template("attn.norm", row=0, writes=(Ref(0, "b"),)),))
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
    return template(role, lane, reads=tuple(Ref(0, name) for name in read), writes=(Ref(0, value),))


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
