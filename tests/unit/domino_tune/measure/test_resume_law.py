"""The law of the cost of waits is recovered from steps that follow it."""

from __future__ import annotations

import random

import pytest

from domino_tune.measure.resume_law import LEAST_ERROR, Resumption, WaitStretch, resume_law

DURATIONS_US = (40.0, 3000.0, 200.0, 2500.0, 90.0, 4000.0, 4000.0)


def stretch(idle_us: float, cost_us: float, recovery_us: float, rng: random.Random) -> WaitStretch:
    """Return ops after a wait, each up to 2 % off its usual time."""
    ops, owed = [], cost_us
    for usual in rng.sample(DURATIONS_US, len(DURATIONS_US)):
        paid = owed * usual / (usual + recovery_us)
        ops.append(Resumption(usual, paid + usual * rng.uniform(-0.02, 0.02)))
        owed -= paid
    return WaitStretch(idle_us + rng.uniform(0, 50), tuple(ops))


@pytest.mark.parametrize("recovery_us", [1000.0, 4000.0])
def test_costs_and_recovery_are_found(recovery_us: float) -> None:
    rng = random.Random(7)
    costs = {1e-3: 100.0, 4e-3: 300.0, 16e-3: 900.0}
    found = resume_law(
        {
            pause: [stretch(pause * 1e6, cost, recovery_us, rng) for _ in range(80)]
            for pause, cost in costs.items()
        }
    )
    assert found.recovery_us == recovery_us
    assert [row.extra_us for row in found.rows] == pytest.approx(list(costs.values()), rel=0.15)
    assert [row.idle_us for row in found.rows] == pytest.approx([1e3, 4e3, 16e3], rel=0.06)
    assert found.samples == 240


def test_hiccups_of_the_machine_are_left_out() -> None:
    rng = random.Random(8)
    stretches = [stretch(1000.0, 200.0, 1000.0, rng) for _ in range(60)]
    hiccup = WaitStretch(1000.0, (Resumption(3000.0, 50_000.0),))
    (row,) = resume_law({1e-3: [*stretches, hiccup, hiccup]}).rows
    assert row.extra_us == pytest.approx(200.0, rel=0.2)


def test_a_wait_costs_nothing_rather_than_less() -> None:
    gains = WaitStretch(1000.0, (Resumption(3000.0, -20.0),))
    assert resume_law({1e-3: [gains]}).rows[0].extra_us == 0.0


def costing(*costs_us: float) -> float:
    """Return the law's error if waits cost these amounts, in this order."""
    rng = random.Random(9)
    return resume_law({1e-3: [stretch(1000.0, cost, 1000.0, rng) for cost in costs_us]}).error


def test_the_error_is_by_how_much_halves_differ() -> None:
    assert costing(*[900.0] * 60) == LEAST_ERROR
    assert costing(*[600.0] * 30, *[1400.0] * 30) == pytest.approx(0.4, abs=0.05)  # it drifts
    assert costing(*[600.0, 1400.0] * 30) == pytest.approx(0.4, abs=0.05)  # ranks differ
    assert costing(*[0.0, 900.0] * 30) == pytest.approx(1.0, abs=0.1)


def test_the_error_of_nothing_is_all_of_it() -> None:
    assert resume_law({}).error == 1.0
    assert costing(-50.0) == 1.0
