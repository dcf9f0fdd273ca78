"""What training costs, by hand."""

from __future__ import annotations

import pytest

from simulator.price import Price, cost_of


def test_a_step_tokens_and_a_run_cost_gpu_hours() -> None:
    """64 GPUs for 9 s at 2.00 an hour are 0.32; 4 million tokens a step, 1e12 in 250,000 steps."""
    cost = cost_of(Price(2.0, 15e12), 9.0, 64, 4_000_000)
    assert cost is not None
    assert cost.step == pytest.approx(0.32)
    assert cost.trillion_tokens == pytest.approx(80_000.0)
    assert cost.run == pytest.approx(1_200_000.0)
    assert cost.run_days == pytest.approx(15e12 / 4e6 * 9 / 86_400)


def test_nothing_is_priced_without_a_price_and_no_run_without_tokens() -> None:
    assert cost_of(None, 9.0, 64, 4_000_000) is None
    cost = cost_of(Price(2.0), 9.0, 64, 4_000_000)
    assert cost is not None
    assert (cost.run_tokens, cost.run, cost.run_days) == (None, None, None)
