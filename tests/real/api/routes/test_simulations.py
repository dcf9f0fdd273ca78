"""What is answered at once, against what the same verbs give locally."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from domino_tune.requests import SimulateRequest, WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.whatif import whatif
from tests.real.api.asked import CELL, good, refused


def as_json(result: Any) -> Any:
    return json.loads(json.dumps(to_json(result)))


@pytest.mark.parametrize(
    "changed",
    [{}, {"row_slices": 4, "col_slices": 2}, {"strategy": "megatron"}, {"grad_accumulation": 8}],
)
def test_a_simulation_is_the_verbs(client: httpx.Client, changed: dict[str, Any]) -> None:
    first = client.post("/v1/simulations", json={**CELL, **changed})
    assert good(first) == as_json(simulate(SimulateRequest(**{**CELL, **changed})))
    assert client.post("/v1/simulations", json={**CELL, **changed}).content == first.content


def test_a_what_if_is_the_verbs(client: httpx.Client) -> None:
    change = ["link_bandwidth=0.5x", "contention=off"]
    found = good(client.post("/v1/what-ifs", json={**CELL, "change": change}))
    assert found == as_json(whatif(WhatIfRequest(**CELL, change=tuple(change))))


def test_many_changes_of_one_plan_are_each_right(client: httpx.Client) -> None:
    base = good(client.post("/v1/simulations", json=CELL))
    for factor in ("1x", "0.5x", "2x"):
        change = [f"link_bandwidth={factor}"]
        found = good(client.post("/v1/what-ifs", json={**CELL, "change": change}))
        assert found["base"]["iteration_ms"] == base["iteration_ms"]
        local = whatif(WhatIfRequest(**CELL, change=tuple(change)))
        assert found["points"] == as_json(local)["points"]


def test_a_plan_file_stands_for_model_and_workload(client: httpx.Client, tuned: Any) -> None:
    plan = good(client.get(tuned["links"]["plan"]))
    alone = good(client.post("/v1/simulations", json={"plan": plan}))
    assert alone == tuned["result"]["simulation"]
    changed = good(client.post("/v1/what-ifs", json={"plan": plan, "change": ["gpu_flops=2x"]}))
    assert changed["points"][0]["iteration_ms"] < alone["iteration_ms"]
    plan["workload"]["seq_length"] += 1
    spoilt = refused(client.post("/v1/simulations", json={"plan": plan}), 422)
    assert spoilt["title"] == "Bad plan file"


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/v1/what-ifs", {}),
        ("/v1/what-ifs", {"change": ["link_bandwidth"]}),
        ("/v1/what-ifs", {"change": ["magic=2x"]}),
        ("/v1/what-ifs", {"change": ["tp=2"], "retune": True}),
        ("/v1/simulations", {"plan": {}}),
        ("/v1/simulations", {"plan": "file.json"}),
        ("/v1/simulations", {"tp": 3}),
        ("/v1/simulations", {"profile": "no-such-machine"}),
        ("/v1/simulations", {"row_slices": 16, "micro_batch_size": 1}),
    ],
)
def test_what_cannot_be_is_refused(client: httpx.Client, path: str, changed: Any) -> None:
    refused(client.post(path, json={**CELL, **changed}), 422)
