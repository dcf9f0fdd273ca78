"""What a cluster measured, sent back: kept, and shown beside the prediction."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

from tests.real.api import page_steps
from tests.support.asked import LONG, good, refused

ERROR = -0.5


@pytest.fixture(scope="package")
def measured(tuned: Any) -> dict[str, Any]:
    """What ``validate --json`` prints of the tune's plan, were it twice as slow as predicted."""
    return page_steps.measured(tuned["result"]["simulation"])


def test_a_report_stands_beside_the_prediction(
    client: httpx.Client, tuned: Any, measured: Any
) -> None:
    place = tuned["links"]["validations"]
    headers = {"Idempotency-Key": "report-1"}
    made = good(client.post(place, json=measured, headers=headers), 201)
    again = client.post(place, json=measured, headers=headers)
    assert good(again) == made
    second = good(client.post(place, json=measured), 201)
    assert made["result"] == measured
    of_plan = next(one for one in made["plans"] if one["tuned"])
    assert of_plan["predicted_ms"] == tuned["result"]["best"]["iteration_ms"]
    assert of_plan["predicted_ms"] / of_plan["measured_ms"] - 1 == pytest.approx(ERROR)
    assert of_plan["error"] == ERROR
    found = good(client.get(place))["items"]
    assert [one["id"] for one in found][-2:] == [made["id"], second["id"]]
    page = good(client.get(place, params={"limit": 1}))
    rest = good(client.get(place, params={"cursor": page["next"]}))
    assert page["items"] + rest["items"] == found


def test_another_plans_or_models_is_refused(
    client: httpx.Client, tuned: Any, measured: Any
) -> None:
    place = tuned["links"]["validations"]
    other = copy.deepcopy(measured)
    other["model"]["num_hidden_layers"] += 1
    assert refused(client.post(place, json=other), 422)["errors"][0]["pointer"] == "#/model"
    alone = {**measured, "plans": measured["plans"][:1]}
    assert refused(client.post(place, json=alone), 422)["errors"][0]["pointer"] == "#/plans"


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"rounds": "3"}, "#/rounds"),
        ({"extra": 1}, "#/extra"),
        ({"plans": []}, "#/plans"),
        ({"backend": None}, "#/backend"),
    ],
)
def test_faults_are_pointed_at(
    client: httpx.Client, tuned: Any, measured: Any, changed: Any, pointer: str
) -> None:
    place = tuned["links"]["validations"]
    problem = refused(client.post(place, json={**measured, **changed}), 422)
    assert problem["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("part", "value", "pointer"),
    [
        ("measured", {"iteration_ms": -1.0}, "/measured/iteration_ms"),
        ("measured", {"iteration_ms": 0}, "/measured/iteration_ms"),
        ("measured", {"iteration_ms": 1e308}, "/measured/iteration_ms"),
        ("measured", {"comm_ms": -0.1}, "/measured/comm_ms"),
        ("predicted", {"iteration_ms": 0.0}, "/predicted/iteration_ms"),
        ("interval_ms", {"low": -1.0}, "/interval_ms/low"),
        ("makespans_ms", [1.0, 0.0], "/makespans_ms/1"),
        ("error", -1e308, "/error"),
        ("spread_ms", 1e10, "/spread_ms"),
    ],
)
def test_numbers_that_nobody_measured_are_refused(
    client: httpx.Client, tuned: Any, measured: Any, part: str, value: Any, pointer: str
) -> None:
    bad = copy.deepcopy(measured)
    own = bad["plans"][1]
    own[part] = {**own[part], **value} if isinstance(value, dict) else value
    problem = refused(client.post(tuned["links"]["validations"], json=bad), 422)
    assert problem["errors"][0]["pointer"] == f"#/plans/1{pointer}"


def test_what_is_not_done_has_no_prediction(client: httpx.Client, measured: Any) -> None:
    place = client.post("/v1/tunes", json=LONG).headers["location"]
    refused(client.post(f"{place}/validations", json=measured), 409)
    assert good(client.get(f"{place}/validations"))["items"] == []
    good(client.post(f"{place}/cancel"))
    nobody = f"/v1/tunes/job_{'0' * 32}/validations"
    refused(client.post(nobody, json=measured), 404)
    refused(client.get(nobody), 404)


def test_a_report_can_be_deleted(client: httpx.Client, tuned: Any, measured: Any) -> None:
    place = tuned["links"]["validations"]
    made = good(client.post(place, json=measured), 201)
    assert client.delete(f"{place}/{made['id']}").status_code == 204
    refused(client.delete(f"{place}/{made['id']}"), 404)
    assert made["id"] not in {one["id"] for one in good(client.get(place))["items"]}
    refused(client.delete(f"{place}/val_x"), 422)
