"""Waves of GEMMs, and the steps that a program makes of them."""

from __future__ import annotations

import pytest

from domino_tune.store.profiles import load_profile
from simulator.compiler import Repriced, compile_program
from simulator.contention import Contention
from simulator.launch import Launch
from simulator.ops import Attention, Collective, Gemm, Signature
from simulator.program import FIRST, REST, WHOLE, WORK_UNIT, Step
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.waves import OPEN, Waves, waves_of
from tests.unit.simulator.dags import TableCost

TWO_WAVES = Gemm(2048, 5120, 2560)
REDUCE = Collective("all_reduce", 1 << 20, 1, 8)


@pytest.mark.parametrize(
    ("gemm", "waves"),
    [
        (Gemm(2048, 2560, 5120), Waves(1, 4)),
        (TWO_WAVES, Waves(2, 8)),
        (Gemm(2752, 4096, 16384, "wgrad", accumulate=True), Waves(3, 44)),
        (Gemm(640, 8192, 5120), Waves(1, 4)),
        (Gemm(128, 256 * 132, 64, accumulate=True), Waves(1, 0)),
        (Gemm(1, 1, 1), Waves(1, 131)),
    ],
)
def test_waves_are_those_that_our_records_show(gemm: Gemm, waves: Waves) -> None:
    """One wave of 128 tiles; two of them; three with 44 SMs free, where collectives got in after
    two thirds of the op."""
    assert waves_of(gemm, 132) == waves


def steps(signature: Signature, *collectives: Collective) -> list[Step]:
    """The compute steps of one op of 90 ns beside ``collectives``."""
    signatures = (signature, *collectives)
    law = Contention(load_profile("h200-sxm").section("contention").fit)
    cost = TableCost(dict.fromkeys(signatures, 90), law, Launch(mode="none"))
    templates = tuple(
        OpTemplate(f"op{i}", -1, one, TP if i else COMPUTE, 0, (), ())
        for i, one in enumerate(signatures)
    )
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
    program = compile_program(schedule, cost)
    assert Repriced(schedule, cost).program(cost) == program
    return [step for step in program.root.steps() if step.lane == COMPUTE]


def test_a_gemm_with_room_in_its_last_wave_is_two_steps() -> None:
    first, rest = steps(TWO_WAVES, with_ctas(8))
    assert (first.part, first.work, first.room) == (FIRST, 45 * WORK_UNIT, 0)
    assert (rest.part, rest.work, rest.room) == (REST, 45 * WORK_UNIT, 8)


@pytest.mark.parametrize("collectives", [(), (REDUCE,), (REDUCE._replace(reserved_sms=8),)])
def test_it_is_one_step_where_no_collective_would_use_the_room(
    collectives: tuple[Collective, ...],
) -> None:
    """NCCL's own choice is 16 CTAs; reserved SMs need no room."""
    (whole,) = steps(TWO_WAVES, *collectives)
    assert (whole.part, whole.work, whole.room) == (WHOLE, 90 * WORK_UNIT, 0)


def test_a_gemm_of_one_wave_has_room_from_its_start() -> None:
    (whole,) = steps(Gemm(2048, 2560, 5120), with_ctas(2))
    assert (whole.part, whole.room) == (WHOLE, 4)


def test_attention_has_no_room_and_without_a_law_all_have() -> None:
    (attention,) = steps(Attention(1, 8, 8, 4096, 128), with_ctas(2))
    assert attention.room == 0
    cost = TableCost({TWO_WAVES: 90}, Contention(None), Launch(mode="none"))
    one = Segment(templates=(OpTemplate("op", -1, TWO_WAVES, COMPUTE, 0, (), ()),))
    schedule = Schedule(parts=(Repeat(segments=(one,)),))
    (open_to_all,) = compile_program(schedule, cost).root.steps()
    assert open_to_all.room == OPEN


def with_ctas(ctas: int) -> Collective:
    """The all-reduce with ``ctas`` CTAs."""
    return REDUCE._replace(ctas=ctas)
