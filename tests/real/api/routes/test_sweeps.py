"""Sweeps: points one by one, then the result of the verb."""

from __future__ import annotations

import json

import httpx
import pytest

from domino_tune.requests import WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.verbs.whatif import whatif
from tests.real.api.asked import CELL, ended, good, refused

SWEEP = {**CELL, "sweep": "link_bandwidth=0.5x,1x,2x"}


def test_a_sweep_is_the_verbs(client: httpx.Client) -> None:
    answer = client.post("/v1/sweeps", json=SWEEP, headers={"Prefer": "respond-async"})
    job = ended(client, answer.headers["location"])
    local = whatif(WhatIfRequest(**CELL, sweep="link_bandwidth=0.5x,1x,2x"))
    assert job["result"] == json.loads(json.dumps(to_json(local)))
    points = good(client.get(job["links"]["points"]))
    assert [one["index"] for one in points["items"]] == [0, 1, 2]
    assert [one["point"] for one in points["items"]] == job["result"]["points"]
    first = good(client.get(job["links"]["points"], params={"limit": 2}))
    rest = good(client.get(job["links"]["points"], params={"cursor": first["next"]}))
    assert first["items"] + rest["items"] == points["items"]
    assert rest["next"] is None


def test_points_come_before_the_end(client: httpx.Client) -> None:
    values = ",".join(f"{1 + number / 100}x" for number in range(200))
    asked = {**CELL, "micro_batch_size": 16, "row_slices": 8, "sweep": f"gpu_flops={values}"}
    answer = client.post(
        "/v1/sweeps", json={**asked, "sweep": asked["sweep"][:250].rpartition(",")[0]}
    )
    place = answer.headers["location"]
    seen = 0
    while not seen:
        seen = len(good(client.get(f"{place}/points"))["items"])
    assert good(client.post(f"{place}/cancel"))["state"] in ("cancelled", "done")
    assert len(good(client.get(f"{place}/points"))["items"]) >= seen


def test_lists_are_apart_and_keys_make_one(client: httpx.Client, tuned: dict[str, str]) -> None:
    headers = {"Idempotency-Key": "sweep-1"}
    first = good(client.post("/v1/sweeps", json=SWEEP, headers=headers), 202)
    again = client.post("/v1/sweeps", json=SWEEP, headers=headers).json()
    assert again["id"] == first["id"]
    ids = [job["id"] for job in good(client.get("/v1/sweeps"))["items"]]
    assert first["id"] in ids
    assert tuned["id"] not in ids
    assert ended(client, first["links"]["self"])["state"] == "done"
    refused(client.get(f"/v1/tunes/{first['id']}"), 404)


@pytest.mark.parametrize("changed", [{"sweep": "tp"}, {"sweep": "speed=2x"}, {"change": ["tp=x"]}])
def test_what_cannot_be_read_is_refused_at_once(
    client: httpx.Client, changed: dict[str, object]
) -> None:
    refused(client.post("/v1/sweeps", json={**CELL, "sweep": "tp=2,4", **changed}), 422)


def test_one_without_a_possible_point_fails(client: httpx.Client) -> None:
    asked = {**CELL, "sweep": "tp=3,5"}
    answer = client.post("/v1/sweeps", json=asked, headers={"Prefer": "respond-async"})
    job = ended(client, answer.headers["location"])
    assert job["state"] == "failed"
    assert "No point" in job["error"]["detail"]
