"""Both engines, with and without the shortcut, against each other and an independent answer."""

from __future__ import annotations

import pytest

from simulator.compiler import compile_program
from simulator.contention import Contention
from simulator.cpu_hosts import SkewFit, SkewRow
from simulator.engine import play
from simulator.errors import ScheduleError
from simulator.launch import Launch
from simulator.ops import Collective, Pointwise, Signature
from simulator.program import WORK_UNIT
from simulator.schedule import COMPUTE, DP, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.values import Ref
from tests.support.by_hand import totals
from tests.unit.simulator.dags import TableCost
from tests.unit.simulator.engine_checks import (
    check_admission,
    check_contended_dag,
    check_dag,
    check_engines_agree,
    unrolled,
)

SMALL, LARGE = Pointwise("copy", 0, 0), Pointwise("copy", 1, 1)
REDUCE, SHORT = (Collective("all_reduce", size, 1, 8) for size in (0, 1))
COST = TableCost({SMALL: 10, LARGE: 25, REDUCE: 100}, Contention(None), Launch(mode="none"))


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("block", range(0, 300, 50))
def test_engines_agree_on_random_programs(block: int) -> None:
    for seed in range(block, block + 50):
        check_engines_agree(seed)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("block", range(0, 300, 50))
def test_engines_give_the_admission_schedulers_times_on_random_programs(block: int) -> None:
    for seed in range(block, block + 50):
        check_admission(seed)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("block", range(0, 500, 50))
def test_engines_give_the_list_schedulers_times_on_random_dags(block: int) -> None:
    for seed in range(block, block + 50):
        check_dag(seed)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("block", range(0, 200, 50))
def test_engines_agree_on_random_dags_with_contention_and_skew(block: int) -> None:
    for seed in range(block, block + 50):
        check_contended_dag(seed)


def op(name: str, *reads: str, signature: Pointwise | Collective = SMALL, lane: int = COMPUTE,
       layer: int = 0) -> OpTemplate:  # fmt: skip
    """An op that reads values of ``layer`` away and writes one of its own name."""
    read = tuple(Ref(value, layer=layer) for value in reads)
    return OpTemplate(f"attn.{name}", -1, signature, lane, 0, read, (Ref(name),))


def spans(*segments: Segment) -> dict[str, tuple[int, int]]:
    """Start and end of each op, by name."""
    schedule = Schedule(parts=(Repeat(segments=segments),))
    timeline = play(schedule, compile_program(schedule, COST))
    assert totals(compile_program(schedule, COST)).makespan_ns == timeline.makespan_ns
    times = zip(timeline.start_ns, timeline.end_ns, strict=True)
    return {item.name: span for item, span in zip(timeline.ops, times, strict=True)}


def test_a_reader_waits_where_it_stands_and_holds_up_what_is_behind_it() -> None:
    got = spans(
        Segment(
            templates=(
                op("x"), op("ar", "x", signature=REDUCE, lane=TP), op("hidden"), op("out", "ar"),
                op("behind"),
            )
        )
    )  # fmt: skip
    assert list(got.values()) == [(0, 10), (10, 110), (10, 20), (110, 120), (120, 130)]


def test_a_collective_waits_for_all_compute_issued_before_it() -> None:
    got = spans(
        Segment(
            templates=(
                op("x"), op("other", signature=LARGE), op("ar", "x", signature=REDUCE, lane=TP),
            )
        )
    )  # fmt: skip
    assert got["l0.attn.ar"] == (35, 135)


def test_lanes_are_fifo_and_independent_of_each_other() -> None:
    got = spans(
        Segment(
            templates=(
                op("x"), op("a", "x", signature=REDUCE, lane=TP),
                op("b", "x", signature=REDUCE, lane=TP), op("c", "x", signature=REDUCE, lane=DP),
            )
        )
    )  # fmt: skip
    assert [got[f"l0.attn.{name}"] for name in "abc"] == [(10, 110), (110, 210), (10, 110)]


def test_a_collective_of_an_earlier_loop_is_waited_for_layer_by_layer() -> None:
    """The second loop's waits never settle: each repetition waits for one collective more."""
    first = Segment(templates=(op("x"), op("ar", "x", signature=REDUCE, lane=TP)), count=6)
    got = spans(first, Segment(templates=(op("late", "ar"),), count=6))
    assert [got[f"l{i}.attn.late"][0] for i in range(6)] == [110 + 100 * i for i in range(6)]


def test_a_lane_without_collectives_in_a_loop_sees_all_of_its_compute() -> None:
    """Data parallelism's first collective after a stack of layers waits for the whole stack."""
    skew = SkewFit(slowest_factor=1.0, rows=(SkewRow(1000.0, 1000.0),), error=0.0)
    cost = TableCost(COST.durations, COST.contention, COST.launch, skew)
    layers = Segment(templates=(op("x"), op("ar", "x", signature=REDUCE, lane=TP)), count=50)
    grads = Segment(templates=(op("dp", "x", signature=REDUCE, lane=DP),), first=49)
    schedule = Schedule(parts=(Repeat(segments=(layers, grads)),))
    late, last = compile_program(schedule, cost).root.steps()[-2:]
    assert (late.family, late.work) == (0, 50 * 10 * WORK_UNIT)
    assert last.work == 100 * WORK_UNIT


@pytest.mark.parametrize("back", range(4))
def test_a_loop_repeats_only_once_its_waits_do(back: int) -> None:
    """A collective from before the loop lands in some repetition; until then some collectives of
    the loop are late, others not, and those that read ``back`` layers before count both."""
    beside = (SkewRow(0.007, 0.0), SkewRow(0.01, 0.05))
    skew = SkewFit(slowest_factor=1.0, rows=(SkewRow(0.01, 0.0),), beside=beside, error=0.0)
    layer = Segment(
        templates=(
            op("x", "a", layer=-back), op("a", "x", signature=SHORT, lane=TP),
            op("y"), op("b", "y", signature=SHORT, lane=TP), op("z"),
        ),
        count=12,
    )  # fmt: skip
    before = Segment(templates=(op("grads", signature=REDUCE, lane=DP),))
    schedule = Schedule(parts=(Repeat(segments=(before, layer)),))
    for landed_ns in range(5, 330, 7):
        durations: dict[Signature, int] = {SMALL: 10, SHORT: 3, REDUCE: landed_ns}
        cost = TableCost(durations, COST.contention, COST.launch, skew)
        looped, flat = (compile_program(one, cost) for one in (schedule, unrolled(schedule)))
        assert looped.root.steps() == flat.root.steps()


def test_a_loop_that_waits_for_nothing_leaves_its_collectives_to_be_waited_for() -> None:
    first = Segment(templates=(op("x"), op("ar", "x", signature=REDUCE, lane=DP)), count=9)
    got = spans(first, Segment(templates=(op("late", "ar"),), first=4))
    assert got["l4.attn.late"] == (510, 520)


def test_a_collective_may_not_read_another_comm_lane() -> None:
    with pytest.raises(ScheduleError, match=r"'attn.b' reads a result of another comm lane"):
        spans(
            Segment(
                templates=(
                    op("x"), op("a", "x", signature=REDUCE, lane=TP),
                    op("b", "a", signature=REDUCE, lane=DP),
                )
            )
        )  # fmt: skip
