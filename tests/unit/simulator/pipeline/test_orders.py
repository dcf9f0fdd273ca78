"""Orders of passes: their bubbles in closed form, and how many micro-batches they hold."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.pipeline.orders import ORDERS, Action
from simulator.pipeline.recurrence import play
from simulator.specs import PIPELINE_SCHEDULES, PipelineSchedule
from tests.unit.simulator.pipeline.programs import program_of

SIZES = [(2, 4), (4, 4), (4, 12), (8, 16), (3, 6)]


def held(order: list[Action], *, until: str) -> int:
    """The most micro-batches (of all chunks) that wait for ``until`` after their forward."""
    live = most = 0
    for action in order:
        live += (action.kind == "F") - (action.kind == until)
        most = max(most, live)
    return most


@pytest.mark.parametrize("schedule", PIPELINE_SCHEDULES)
@pytest.mark.parametrize(("pp", "micros"), [*SIZES, (4, 1), (4, 3)])
def test_every_pass_is_played_once_and_in_order(
    schedule: PipelineSchedule, pp: int, micros: int
) -> None:
    kinds = "FBW" if schedule == "zero-bubble" else "FB"
    for order in ORDERS[schedule](pp, 1, micros):
        assert sorted(order) == sorted(Action(k, m, 0) for k in kinds for m in range(micros))  # type: ignore[arg-type]
        for before, behind in pairwise(kinds):
            for micro in range(micros):
                first = order.index(Action(before, micro, 0))  # type: ignore[arg-type]
                assert first < order.index(Action(behind, micro, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("pp", "micros"), SIZES)
def test_1f1b_and_gpipe_wait_for_pp_minus_1_micro_batches(
    schedule: PipelineSchedule, pp: int, micros: int
) -> None:
    run = play(program_of(schedule, pp, 1, micros, {"F": 100, "B": 200}))
    assert run.makespan_ns == (micros + pp - 1) * 300


@pytest.mark.parametrize("vpp", [2, 3, 5])
@pytest.mark.parametrize(("pp", "micros"), [(2, 4), (4, 8), (8, 16), (3, 9)])
def test_interleaving_divides_the_bubble_by_vpp(pp: int, vpp: int, micros: int) -> None:
    run = play(program_of("1f1b", pp, vpp, micros, {"F": 100, "B": 200}))
    assert run.makespan_ns == (micros * vpp + pp - 1) * 300


@pytest.mark.parametrize(("pp", "micros"), SIZES)
def test_zero_bubble_waits_for_a_forward_a_rank(pp: int, micros: int) -> None:
    """(pp − 1)·(F + B − W), arXiv 2401.10241, Table 2."""
    run = play(program_of("zero-bubble", pp, 1, micros, {"F": 100, "B": 100, "W": 100}))
    assert run.makespan_ns == (3 * micros + pp - 1) * 100


@pytest.mark.parametrize(("pp", "micros"), [(4, 12), (8, 16), (8, 4)])
def test_micro_batches_that_are_held(pp: int, micros: int) -> None:
    orders = {name: ORDERS[name](pp, 1, micros) for name in PIPELINE_SCHEDULES}
    for rank in range(pp):
        assert held(orders["gpipe"][rank], until="B") == micros
        assert held(orders["1f1b"][rank], until="B") == min(micros, pp - rank)
        assert held(orders["zero-bubble"][rank], until="W") <= min(micros, pp)


def test_interleaving_holds_more() -> None:
    """2·(pp − 1) + (vpp − 1)·pp + 1 chunks on the first rank (Megatron-LM's warm-up, and one)."""
    first = ORDERS["1f1b"](4, 2, 16)[0]
    assert held(first, until="B") == 2 * 3 + 4 + 1
