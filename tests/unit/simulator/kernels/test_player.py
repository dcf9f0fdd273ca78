"""The compiled player is the plain Python that it is compiled from, and never leaves 64 bits."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.kernels import clocks, load, periodic, player, program_arrays
from simulator.program import WORK_UNIT, Loop, Step
from tests.support.by_hand import arrays_of, totals
from tests.unit.simulator.programs import random_program


@pytest.mark.parametrize("seed", range(30))
def test_compiled_and_plain_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(seed)
    compiled = totals(program)

    def plain(name: str, *arguments: object) -> int:
        assert name == "play_program"
        return periodic.play_program(*arguments)

    monkeypatch.setattr(program_arrays, "call", plain)
    assert totals(program) == compiled


@pytest.mark.parametrize("rate", [1 << 10, 12345, (1 << 20) - 1, 1 << 26])
def test_times_and_works_are_exact_beyond_64_bits(rate: int) -> None:
    rng = random.Random(rate)
    for _ in range(200):
        work = rng.randrange(1 << rng.randrange(1, 62 - rate.bit_length() + 20))
        assert player.time_of(work, rate) == -(-work * rate >> 20)
        elapsed = rng.randrange(1 << rng.randrange(1, 62))
        if (elapsed << 20) // rate < 1 << 62:
            assert player.work_in(elapsed, rate) == (elapsed << 20) // rate


def test_a_program_that_could_leave_64_bits_is_refused_and_one_below_is_played() -> None:
    def lasting(years: float) -> int:
        step = Step(0, int(years * 3.156e16) * WORK_UNIT // 1000, 1, (), 0)
        program = replace(
            random_program(1), root=Loop(body=(Loop(body=(step,), count=1000),)), queue_depth=0,
            resume=None,
        )  # fmt: skip
        return totals(program).makespan_ns

    assert lasting(70) == pytest.approx(70 * 3.156e16, rel=1e-3)
    assert lasting(70) < player.MOST_NS
    with pytest.raises(InputError, match="73 years"):
        lasting(80)


def test_room_for_queues_and_marks_grows_with_the_program() -> None:
    """Many collectives that wait for one another, and states that never repeat."""
    sent = tuple(Step(1, (7 + number) * WORK_UNIT, 4, (), 3, needs=0) for number in range(300))
    program = replace(
        random_program(1), root=Loop(body=(Loop(body=(Step(0, WORK_UNIT, 1, (), 1), *sent),
        count=200),)), resume=None,
    )  # fmt: skip
    assert totals(program) == totals(program, shortcut=False)


def test_a_pricing_has_a_row_for_all_families_in_flight() -> None:
    for seed in range(20):
        arrays, pricing = arrays_of(random_program(seed))
        assert len(pricing.rates) == player.LANES * int(np.prod(pricing.rows))
        used = arrays.steps[:, player.NUMBER]
        assert pricing.numbers[used, player.FAMILY].min() >= 0


def test_a_clock_is_the_largest_that_keeps_the_cap() -> None:
    """By a plain search over all clocks, with the plain functions."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        rows = np.array([[rng.integers(1, 50), 1, 0] for _ in range(9)])
        ops = np.stack([
            rng.uniform(5, 900, 9), rng.uniform(1200, 1980, 9), rng.uniform(0, 1, 9),
            rng.uniform(100, 900, 9), np.arange(9) % 4.0,
        ], axis=1)  # fmt: skip
        law, drawn = np.array([1980.0, 2.4, 90.0, rng.uniform(150, 700), 1.0]), np.empty(4)
        beside = int(rng.integers(0, 10_000_000))
        found = load.call("find_clock", rows, ops, law, drawn, 1980, 15, 93, beside)

        def keeps(
            place: int, rows: object = rows, ops: object = ops, law: object = law,
            beside: int = beside,
        ) -> bool:  # fmt: skip
            drawn = np.empty(4)
            elapsed = clocks.load_at(rows, ops, law, 1980 - 15 * place, 0, drawn) + beside
            watts = 90.0 + (drawn[0] + drawn[1] + drawn[2] + drawn[3]) / elapsed / 1e-9
            return bool(watts <= law[clocks.CAP_W])  # type: ignore[index]

        assert found == next((place for place in range(93) if keeps(place)), 92)
