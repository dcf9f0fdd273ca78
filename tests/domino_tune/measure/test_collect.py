"""Reports of ranks become a profile, in whatever order they come."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.measure.collect import add_message
from domino_tune.measure.machine import this_machine
from simulator.cost import CostModel
from simulator.ops import Collective, Gemm
from simulator.profile import Profile

GEMM = Gemm(64, 32, 16, "forward", "fp32", bias=True)
REDUCE = Collective("all_reduce", 4096, 2, 1, 0, "fp32")
PLAN: dict[str, Any] = {
    "kind": "plan",
    "overhead_us": 18.0,
    "ops": [{"signature": ["gemm", *GEMM], "median_us": 5.5, "spread_us": 0.5, "samples": 20}],
}
COLLECTIVE: dict[str, Any] = {
    "kind": "collective", "signature": list(REDUCE), "median_us": 200.0, "spread_us": 3.0,
    "hand_over_us": 50.0, "samples": 20,
}  # fmt: skip


@pytest.mark.parametrize("messages", [(PLAN, COLLECTIVE), (COLLECTIVE, PLAN)])
def test_launch_costs_are_kept_whichever_comes_first(messages: tuple[dict[str, Any], ...]) -> None:
    profile = Profile(name="here", created="2026-11-20", machine=this_machine(1, "gloo", {}))
    for message in messages:
        profile = add_message(profile, message)
    assert profile.launch is not None
    assert profile.launch.cost_us == {
        "gemm": 18.0, "attention": 18.0, "pointwise": 18.0, "collective": 50.0,
    }  # fmt: skip
    cost = CostModel(profile)
    assert cost.estimate(GEMM).duration_us == 5.5
    assert cost.estimate(REDUCE).duration_us == 200.0
    assert {cost.estimate(GEMM).source, cost.estimate(REDUCE).source} == {"measured"}
