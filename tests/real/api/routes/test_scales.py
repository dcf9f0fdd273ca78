"""Searches of layouts at several numbers of GPUs, against what the verb finds here."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from domino_tune.requests import TuneRequest
from domino_tune.results.json_form import to_json
from domino_tune.verbs.scale import tune_scale
from tests.real.api.asked import ended, good, refused

SCALE: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 512, "global_batch_size": 4,
    "overrides": ["num_hidden_layers=4"], "tp": 2, "sweep": "gpus=2,3,4",
}  # fmt: skip


@pytest.fixture(scope="module")
def done(client: httpx.Client) -> Any:
    """The JSON of a search that is done."""
    answer = client.post("/v1/scales", json=SCALE)
    job = good(answer, 202)
    assert answer.headers["location"] == job["links"]["self"] == f"/v1/scales/{job['id']}"
    return ended(client, answer.headers["location"])


def test_it_finds_what_the_verb_finds(done: Any) -> None:
    asked = {**SCALE, "overrides": tuple(SCALE["overrides"])}
    local = json.loads(json.dumps(to_json(tune_scale(TuneRequest(**asked)))))
    del local["seconds"]
    assert (done["state"], done["result"]) == ("done", local)
    assert (done["progress"]["done"], done["progress"]["total"]) == (3, 3)


def test_points_come_one_by_one(client: httpx.Client, done: Any) -> None:
    page = good(client.get(done["links"]["points"], params={"limit": 2}))
    rest = good(client.get(done["links"]["points"], params={"cursor": page["next"]}))
    items = [*page["items"], *rest["items"]]
    assert [one["index"] for one in items] == [0, 1, 2]
    assert [one["point"] for one in items] == done["result"]["points"]
    assert [one["point"]["layout"] is None for one in items] == [False, True, False]


def test_lists_and_events(client: httpx.Client, done: Any) -> None:
    page = good(client.get("/v1/scales", params={"q": "gpus=2,3,4"}))
    assert done["id"] in [one["id"] for one in page["items"]]
    events = client.get(done["links"]["events"])
    assert events.status_code == 200
    assert "event: done" in events.text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sweep": "tp=2,4"}, "rising whole numbers"),
        ({"sweep": "gpus=4"}, "2 to 32 rising whole numbers"),
        ({"sweep": "gpus=2,100000"}, "65536"),
        ({"tp": 5}, "No number of GPUs in sweep has a layout"),
        ({"model": "gpt"}, "Unknown model 'gpt'"),
        ({"gpus": 4}, "#/gpus"),
        ({"target": "deepspeed"}, "#/target"),
        ({"global_batch_size": 1 << 20}, "at most"),
    ],
)
def test_what_cannot_be_asked(client: httpx.Client, changed: dict[str, Any], said: str) -> None:
    problem = refused(client.post("/v1/scales", json={**SCALE, **changed}), 422)
    assert said in problem["detail"]


def test_what_fits_at_no_number_is_refused_at_once(client: httpx.Client) -> None:
    large = {**SCALE, "model": "gpt3-175b", "overrides": [], "sweep": "gpus=2,4"}
    problem = refused(client.post("/v1/scales", json=large), 422)
    assert problem["reason"] == "memory"


def test_stop_cancel_and_delete(client: httpx.Client) -> None:
    long = {**SCALE, "model": "llama3-8b", "overrides": [], "sweep": "gpus=8,16,32,64",
            "global_batch_size": 256, "seq_length": 4096, "tp": None}  # fmt: skip
    del long["tp"]
    path = good(client.post("/v1/scales", json=long), 202)["links"]["self"]
    refused(client.delete(path), 409)
    good(client.post(f"{path}/finish"))
    job = ended(client, path)
    assert (job["state"], job["stopped_by"]) == ("done", "user")
    assert 1 <= len(job["result"]["points"]) < 4
    other = good(client.post("/v1/scales", json=long), 202)["links"]["self"]
    assert good(client.post(f"{other}/cancel"))["state"] == "cancelled"
    for one in (path, other):
        assert client.delete(one).status_code == 204
