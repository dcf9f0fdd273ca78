"""What is answered at once is what the services answer, also where half of it was known already."""

from __future__ import annotations

import json

import pytest

from domino_tune.requests import SimulateRequest, WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.service.tasks.task import Task
from domino_tune.service.tasks.work import quick
from domino_tune.store.shelf import DISK
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.whatif import whatif
from simulator.errors import InfeasiblePlanError, InputError
from tests.support.tasks import tune_task

WORKLOAD = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 8, "seq_length": 1024,
    "micro_batch_size": 8,
}  # fmt: skip


def what_if(*change: str) -> WhatIfRequest:
    return WhatIfRequest(**WORKLOAD, change=change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["link_bandwidth=0.5x", "link_bandwidth=2x", "tp=4"])
def test_what_if_is_the_services(change: str) -> None:
    request = what_if(change)
    answer = quick("whatif", Task.of("whatif", request, DISK).to_bytes())
    assert json.loads(answer) == json.loads(json.dumps(to_json(whatif(request))))


def test_what_if_that_changes_nothing_is_refused_after_one_that_did() -> None:
    quick("whatif", Task.of("whatif", what_if("contention=off"), DISK).to_bytes())
    with pytest.raises(InputError, match="Say what to change"):
        quick("whatif", Task.of("whatif", what_if(), DISK).to_bytes())


def test_simulation_is_the_services() -> None:
    request = SimulateRequest(**WORKLOAD)  # type: ignore[arg-type]
    answer = quick("simulate", Task.of("simulate", request, DISK).to_bytes())
    assert json.loads(answer) == json.loads(json.dumps(to_json(simulate(request))))


def test_a_plan_file_stands_for_model_and_workload() -> None:
    sliced = SimulateRequest(**{**WORKLOAD, "row_slices": 2})  # type: ignore[arg-type]
    plan_file = simulate(sliced).plan_file
    request = WhatIfRequest(change=("link_bandwidth=2x",), profile="h100-dgx")
    result = json.loads(quick("whatif", Task.of("whatif", request, DISK, plan_file).to_bytes()))
    assert result["points"][0]["changes"] == {"link_bandwidth": "2x"}
    assert result["base"]["plan"]["row_slices"] == 2


def test_nothing_else_is_quick() -> None:
    with pytest.raises(InputError, match="Unknown kind"):
        quick("tune", tune_task())


def test_errors_are_the_services() -> None:
    request = SimulateRequest(
        model="gpt3-175b", profile="h100-dgx", tp=8, seq_length=2048, micro_batch_size=1,
        row_slices=2,
    )  # fmt: skip
    with pytest.raises(InfeasiblePlanError, match="row_slices ≤ 1"):
        quick("simulate", Task.of("simulate", request, DISK).to_bytes())
