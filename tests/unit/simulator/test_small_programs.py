"""Programs of a few steps, whose times are computed by hand; both engines agree on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.compiler import Totals
from simulator.contention import CollectiveFamily, ComputeFamily, Contention
from simulator.engine import play
from simulator.implementation import LaunchOrder
from simulator.program import FIRST, REST, WORK_UNIT, Loop, Program, Step, spans_of_ops
from tests.support.by_hand import record, totals
from tests.unit.simulator.programs import program_schedule

COMPUTE, TP, DP = 0, 1, 2
FAMILIES = (None, ComputeFamily("gemm"), CollectiveFamily(1, 8), CollectiveFamily(1, 8))


def step(lane: int, ns: int, *waits: tuple[int, int], launch: int = 0) -> Step:
    return Step(lane, ns * WORK_UNIT, lane + 1, waits, launch)


def program(*steps: Step, count: int = 1, depth: int = 0) -> Program:
    return Program(
        root=Loop(body=(Loop(body=steps, count=count),)), lanes=3, families=FAMILIES,
        contention=Contention(None), queue_depth=depth,
    )  # fmt: skip


def check(made: Program, spans: list[tuple[int, int]], expected: Totals) -> None:
    """Both engines' spans, and the sums with and without the shortcut."""
    schedule = program_schedule(made)
    for timeline in (play(schedule, made), record(schedule, made)):
        assert list(zip(timeline.start_ns, timeline.end_ns, strict=True)) == spans
    assert totals(made) == totals(made, shortcut=False) == expected


def test_a_reader_waits_and_what_stands_behind_it_too() -> None:
    """compute 0–10, then its all-reduce 10–40 beside compute 10–22; the reader waits until 40."""
    made = program(
        step(COMPUTE, 10), step(TP, 30), step(COMPUTE, 12), step(COMPUTE, 10, (TP, 0)),
        step(COMPUTE, 5),
    )  # fmt: skip
    spans = [(0, 10), (10, 40), (10, 22), (40, 50), (50, 55)]
    check(made, spans, Totals(55, 37, 30, 18, (0, 30, 0)))


def test_a_lane_is_a_queue_and_a_wait_may_leave_the_last_ones_behind() -> None:
    """Two all-reduces of 30 ns follow each other; the reader needs all but the last one."""
    made = program(
        step(COMPUTE, 10), step(TP, 30), step(COMPUTE, 10), step(TP, 30),
        step(COMPUTE, 10, (TP, 1)), step(COMPUTE, 10, (TP, 0)),
    )  # fmt: skip
    spans = [(0, 10), (10, 40), (10, 20), (40, 70), (40, 50), (70, 80)]
    check(made, spans, Totals(80, 40, 60, 40, (0, 60, 0)))


def test_two_comm_lanes_run_beside_each_other() -> None:
    made = program(step(COMPUTE, 5), step(TP, 20), step(DP, 50), step(COMPUTE, 5, (TP, 0)))
    check(made, [(0, 5), (5, 25), (5, 55), (25, 30)], Totals(55, 10, 50, 45, (0, 20, 50)))


def test_the_host_delays_what_it_issues_late() -> None:
    """Launches of 8, 4, 9 and 1 ns: issued at 8, 12, 21 and 22. The all-reduce may start at 12 and
    waits for compute until 13; compute then waits for the host."""
    made = program(
        step(COMPUTE, 5, launch=8), step(TP, 4, launch=4), step(COMPUTE, 3, launch=9),
        step(COMPUTE, 6, launch=1), depth=10,
    )  # fmt: skip
    check(made, [(8, 13), (13, 17), (21, 24), (24, 30)], Totals(30, 14, 4, 4, (0, 4, 0)))


def test_a_collective_waits_for_the_host_while_nothing_computes() -> None:
    """Issued at 2 and 32; compute before it ends at 7."""
    made = program(
        step(COMPUTE, 5, launch=2), step(TP, 10, launch=30), step(COMPUTE, 3, (TP, 0), launch=1),
        depth=10,
    )  # fmt: skip
    check(made, [(2, 7), (32, 42), (42, 45)], Totals(45, 8, 10, 10, (0, 10, 0)))


@pytest.mark.parametrize(("depth", "ends"), [(1, [22, 44, 66, 88]), (2, [22, 34, 46, 58])])
def test_a_full_queue_stops_the_host(depth: int, ends: list[int]) -> None:
    """Ops of 10 ns, launches of 12. With one place, op i is issued 12 ns after the end of op i − 1;
    with two, 12 ns after its issue."""
    made = program(step(COMPUTE, 10, launch=12), count=4, depth=depth)
    spans = [(end - 10, end) for end in ends]
    check(made, spans, Totals(ends[-1], 40, 0, 0, (0, 0, 0)))


def test_a_wait_for_ranks_belongs_to_the_op_behind_it() -> None:
    """Family 0 keeps the lane for 7 ns, moves no bytes, and its time is the all-reduce's."""
    late = Step(TP, 7 * WORK_UNIT, 0, (), 3)
    steps = (step(COMPUTE, 10), late, step(TP, 30), step(COMPUTE, 4, (TP, 0)))
    assert spans_of_ops(steps, [(0, 10), (10, 17), (17, 47), (47, 51)]) == (
        (0, 10, 47), (10, 47, 51),
    )  # fmt: skip
    made = program(*steps)
    assert totals(made).makespan_ns == 51


FULL = step(COMPUTE, 10)._replace(room=0)


@pytest.mark.parametrize(
    ("order", "reduced", "ops", "exposed"),
    [
        ("comm_first", [(10, 16), (20, 26)], [(0, 10), (10, 20), (20, 30), (30, 40)], 0),
        ("ordered", [(10, 16), (16, 22)], [(0, 10), (16, 26), (26, 36), (36, 46)], 6),
        ("free", [(20, 26), (30, 36)], [(0, 10), (10, 20), (20, 30), (30, 40)], 0),
    ],
)
def test_who_is_first_on_a_gpu_that_an_op_fills(
    order: LaunchOrder, reduced: list[tuple[int, int]], ops: list[tuple[int, int]], exposed: int
) -> None:
    """Two all-reduces of 6 ns are ready at 10, when the second of four ops of 10 ns is, too. The
    second one is next at 16, amid an op, and gets in at that op's end, unless the op waited."""
    made = replace(program(FULL, step(TP, 6), step(TP, 6), FULL, FULL, FULL), launch_order=order)
    end = ops[-1][1]
    spans = [ops[0], *reduced, *ops[1:]]
    check(made, spans, Totals(end, 40, 12, exposed, (0, 12, 0)))


def test_a_collective_that_waits_for_later_ranks_has_its_sms() -> None:
    """It is launched at 10 beside an op of 10 ns and moves its bytes from 17 on, amid that op."""
    late, moving = Step(TP, 7 * WORK_UNIT, 0, (), 0), step(TP, 30)._replace(needs=0)
    made = program(FULL, late, moving, FULL, step(COMPUTE, 4, (TP, 0)))
    assert totals(made).makespan_ns == 51


@pytest.mark.parametrize(
    ("needs", "reduced", "end"), [(4, (37, 43), 43), (5, (40, 46), 46), (0, (16, 22), 40)]
)
def test_a_last_wave_lets_in_what_it_has_room_for(
    needs: int, reduced: tuple[int, int], end: int
) -> None:
    """The second all-reduce, ready at 10, is next at 16, amid an op of 30 ns whose last wave leaves
    4 SMs from 37 on."""
    waves = FULL._replace(work=27 * WORK_UNIT, part=FIRST)
    last = step(COMPUTE, 3)._replace(room=4, part=REST)
    second = step(TP, 6)._replace(needs=needs)
    made = program(FULL, step(TP, 6), second, waves, last)
    spans = [(0, 10), (10, 16), reduced, (10, 40)]
    check(made, spans, Totals(end, 40, 12, end - 40, (0, 12, 0)))


def test_an_op_that_does_not_fill_lets_a_collective_in() -> None:
    """The first op's all-reduce ends at 16; the next one starts at once beside a pointwise op."""
    made = program(FULL, step(TP, 6), step(TP, 6), step(COMPUTE, 20))
    spans = [(0, 10), (10, 16), (16, 22), (10, 30)]
    check(made, spans, Totals(30, 30, 12, 0, (0, 12, 0)))


@pytest.mark.parametrize("launch", [0, 2])
def test_a_billion_repetitions_are_added_up(launch: int) -> None:
    """Compute of 10 ns reads the all-reduce of 6 before it; a launch of 2 ns is never waited for,
    but at the beginning."""
    count = 10**9
    made = program(
        step(COMPUTE, 10, launch=launch), step(TP, 6, launch=launch),
        step(COMPUTE, 4, (TP, 0), launch=launch),
        count=count, depth=8 if launch else 0,
    )  # fmt: skip
    expected = Totals(20 * count + launch, 14 * count, 6 * count, 6 * count, (0, 6 * count, 0))
    assert totals(made) == expected
    assert totals(made, shortcut=True) == expected


def test_micro_batches_are_added_up_too() -> None:
    inner = Loop(body=(step(COMPUTE, 10), step(TP, 6), step(COMPUTE, 4, (TP, 0))), count=10**6)
    made = replace(program(), root=Loop(body=(Loop(body=(inner,), count=10**6),)))
    assert totals(made).makespan_ns == 20 * 10**12


def test_loops_have_the_length_of_their_steps() -> None:
    one = step(COMPUTE, 1)
    inner = Loop(body=(one, one, one), count=2)
    outer = Loop(body=(inner, Loop(body=(one,))), count=5)
    assert (len(inner), len(outer)) == (6, 35)
    assert len(outer.steps()) == 35
    assert inner.steps() == (one,) * 6


def test_an_empty_program_takes_no_time() -> None:
    assert totals(program()) == Totals(0, 0, 0, 0, (0, 0, 0))
