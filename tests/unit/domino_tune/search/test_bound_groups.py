"""Bounds of a whole space: sums over its kinds of passes give what each plan gives by itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.search.simulated import CasePlans
from domino_tune.verbs.resolve import resolve
from simulator.bounds import Bounds
from simulator.stack import reads_columns

SHARED: dict[str, Any] = {
    "model": "gpt3-6.7b",
    "profile": "h100-dgx",
    "overrides": ("num_hidden_layers=4",),
}
JOBS: dict[str, dict[str, Any]] = {
    "batch": {"tp": 8, "seq_length": 1024, "micro_batch_size": 5},
    "sequences": {"tp": 4, "seq_length": 2048, "micro_batch_size": 1},
    "recomputed": {"tp": 8, "seq_length": 2048, "micro_batch_size": 4, "recompute": "full"},
    "pipeline": {
        "tp": 4,
        "pp": 2,
        "seq_length": 2048,
        "micro_batch_size": 2,
        "grad_accumulation": 4,
    },
    "at a clock": {"tp": 8, "seq_length": 2048, "micro_batch_size": 2, "clock_mhz": 1500},
}


@pytest.mark.parametrize("job", JOBS)
def test_a_spaces_bounds_are_those_of_its_plans(job: str) -> None:
    plans = CasePlans(case=resolve(TuneRequest(**SHARED, **JOBS[job])))
    bounds_ns = plans.problem.quick_bounds_ns
    assert len(bounds_ns) == len(plans.space)
    alone = Bounds(plans.case)
    for number in [0, *random.Random(job).sample(range(len(bounds_ns)), 100)]:
        plan = plans.space[number]
        assert bounds_ns[number] == alone.any_order_ns([plan])[0]


def test_a_space_has_few_kinds_of_passes() -> None:
    plans = CasePlans(case=resolve(TuneRequest(**SHARED, **JOBS["batch"])))
    groups = plans.space.bound_groups(
        reads_columns=reads_columns(plans.case.model, plans.case.workload)
    )
    assert len(groups.forward.first) + len(groups.backward.first) < len(plans.space) / 10
