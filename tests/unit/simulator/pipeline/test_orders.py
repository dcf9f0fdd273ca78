"""Orders of passes: their bubbles in closed form, and how many micro-batches they hold."""

from __future__ import annotations

from itertools import product

import pytest

from simulator.case import place, stage_of
from simulator.pipeline.orders import ORDERS, Action, wiring
from simulator.pipeline.program import play
from simulator.specs import PIPELINE_SCHEDULES, PipelineSchedule
from tests.unit.simulator.pipeline.programs import program_of

WITH: dict[str, set[str]] = {
    "zero-bubble": {"I", "W"},
    "dualpipev": {"B", "I", "W"},
    "gpipe": {"B"},
    "1f1b": {"B"},
}
SIZES = [(2, 4), (4, 4), (4, 12), (8, 16), (3, 6)]


def held(order: list[Action], *, until: str) -> int:
    """The most micro-batches (of all chunks) that wait for a kind in ``until`` after their
    forward."""
    live = most = 0
    for action in order:
        live += (action.kind == "F") - (action.kind in until)
        most = max(most, live)
    return most


@pytest.mark.parametrize("schedule", PIPELINE_SCHEDULES)
@pytest.mark.parametrize(("pp", "micros"), [*SIZES, (4, 1), (4, 3)])
def test_every_pass_is_played_once_and_in_order(
    schedule: PipelineSchedule, pp: int, micros: int
) -> None:
    vpp = 2 if schedule == "dualpipev" else 1
    micros = max(micros, 2 * pp) if vpp == 2 else micros
    for order in ORDERS[schedule](pp, vpp, micros):
        for micro, chunk in product(range(micros), range(vpp)):
            own = [one.kind for one in order if (one.micro, one.chunk) == (micro, chunk)]
            assert "".join(own) in ("FB", "FIW")
        assert {one.kind for one in order} >= WITH[schedule]
        assert len(order) == sum(1 + (one.kind != "W") for one in order if one.kind != "F")


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
    run = play(program_of("zero-bubble", pp, 1, micros, {"F": 100, "I": 100, "W": 100}))
    assert run.makespan_ns == (3 * micros + pp - 1) * 100


@pytest.mark.parametrize(("pp", "micros"), [(4, 12), (8, 16), (8, 4)])
def test_micro_batches_that_are_held(pp: int, micros: int) -> None:
    orders = {name: ORDERS[name](pp, 1, micros) for name in ("gpipe", "1f1b", "zero-bubble")}
    for rank in range(pp):
        assert held(orders["gpipe"][rank], until="B") == micros
        assert held(orders["1f1b"][rank], until="B") == min(micros, pp - rank)
        assert held(orders["zero-bubble"][rank], until="W") <= min(micros, pp)


@pytest.mark.parametrize(("pp", "micros"), [(2, 4), (4, 8), (4, 17), (8, 40)])
def test_a_v_waits_a_third_of_interleaved_stages_and_its_ranks_hold_alike(
    pp: int, micros: int
) -> None:
    """Bubble (pp − 1)·(F + I − W) of half stages, where passes are of one length."""
    times = {"F": 100, "B": 200, "I": 100, "W": 100}
    run = play(program_of("dualpipev", pp, 2, micros, times))
    assert run.makespan_ns == (6 * micros + pp - 1) * 100
    orders = ORDERS["dualpipev"](pp, 2, micros)
    most = [held([one for one in order if one.kind != "W"], until="BI") for order in orders]
    assert set(most) == {2 * pp + 1}


def test_stages_of_a_v_go_back_from_the_last_rank() -> None:
    assert [place(stage, 3, "dualpipev") for stage in range(6)] == [
        (0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1),
    ]  # fmt: skip
    assert [place(stage, 3, "1f1b")[0] for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    for stage in range(6):
        assert stage_of(*place(stage, 3, "dualpipev"), 3, "dualpipev") == stage
    wires = wiring("dualpipev", 3, 2, 6)
    assert len(wires.messages) == 2 * 6 * 4, "none from the last rank to itself"
    assert {(one.sender, one.receiver, one.lower) for one in wires.messages} == {
        (0, 1, 0), (1, 0, 0), (1, 2, 1), (2, 1, 1),
    }  # fmt: skip


def test_interleaving_holds_more() -> None:
    """2·(pp − 1) + (vpp − 1)·pp + 1 chunks on the first rank (Megatron-LM's warm-up, and one)."""
    first = ORDERS["1f1b"](4, 2, 16)[0]
    assert held(first, until="B") == 2 * 3 + 4 + 1
