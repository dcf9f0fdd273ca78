"""Searches of layouts, from the request to the plan file, against what the verb gives locally."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.requests import PlanExportRequest, TuneRequest
from domino_tune.results.json_form import to_json
from domino_tune.store.plans import load_plan
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.plan import plan_export
from tests.real.api.asked import CELL, LAYOUTS, SMALL, ended, good, refused
from tests.real.api.routes.test_events import events

LONG = {
    "model": "llama3-8b", "profile": "h100-dgx", "seq_length": 4096, "gpus": 16,
    "global_batch_size": 256,
}  # fmt: skip
"""A search of several seconds."""


@pytest.fixture(scope="module")
def found(client: httpx.Client) -> Any:
    """The JSON of a search that is done."""
    answer = client.post("/v1/layouts", json=LAYOUTS)
    job = good(answer, 202)
    assert answer.headers["location"] == f"/v1/layouts/{job['id']}" == job["links"]["self"]
    assert job["request"] == LAYOUTS
    assert (job["kind"], job["result"], job["best"]) == ("layout", None, None)
    done = ended(client, answer.headers["location"])
    assert done["state"] == "done", done
    return done


def test_a_result_is_what_the_verb_gives(found: Any) -> None:
    asked = {**LAYOUTS, "overrides": tuple(LAYOUTS["overrides"])}
    local = json.loads(json.dumps(to_json(tune_layouts(TuneRequest(**asked)))))
    del local["seconds"]
    assert found["result"] == local
    assert found["best"] == local["layouts"][0]
    assert found["progress"]["done"] == found["progress"]["total"] == local["evaluations"]


def test_files_are_those_of_the_best_layout(
    client: httpx.Client, found: Any, tmp_path: Path
) -> None:
    links = found["links"]
    assert set(links) == {"self", "events", "plan", "report", "trace"}
    answer = client.get(links["plan"])
    good(answer)
    file = tmp_path / "plan.json"
    file.write_bytes(answer.content)
    plan, best = load_plan(file), found["result"]["layouts"][0]
    assert plan.cluster.world_size == LAYOUTS["gpus"]
    assert plan.predicted.iteration_ms == pytest.approx(best["iteration_ms"])
    told = good(client.get(links["plan"], params={"to": "env"}))
    assert told.pop("text")
    assert told == to_json(plan_export(PlanExportRequest(file=str(file), to="env")))
    report, trace = client.get(links["report"]), client.get(links["trace"])
    assert report.text.startswith("<!doctype html>")
    assert "sandbox" in report.headers["content-security-policy"]
    assert good(trace)["traceEvents"]
    refused(client.get(links["plan"], params={"to": "horovod"}), 422)


def test_one_that_runs_tells_and_can_be_called_off(client: httpx.Client) -> None:
    place = client.post("/v1/layouts", json=LONG).headers["location"]
    seen = []
    with client.stream("GET", f"{place}/events") as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["best"] is not None:
                    break
    assert seen[-1]["state"] == "running"
    assert seen[-1]["progress"]["done"] > 0
    assert seen[-1]["best"]["iteration_ms"] > 0
    assert not {"domino_gain", "domino_gain_here"} & set(seen[-1]["best"])
    for part in ("plan", "report", "trace"):
        assert "it is running" in refused(client.get(f"{place}/{part}"), 404)["detail"]
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
    assert ended(client, place)["result"] is None


def test_who_comes_back_when_it_has_ended(client: httpx.Client, found: Any) -> None:
    place = found["links"]["events"]
    last = events(client.get(place).text)[-1]
    assert (last["event"], json.loads(last["data"])["kind"]) == ("done", "layout")
    assert client.get(place, headers={"Last-Event-ID": last["id"]}).status_code == 204


def test_lists_are_apart_and_keys_make_one(
    client: httpx.Client, found: Any, tuned: dict[str, str]
) -> None:
    headers = {"Idempotency-Key": "layouts-1"}
    first = good(client.post("/v1/layouts", json=LONG, headers=headers), 202)
    again = client.post("/v1/layouts", json=LONG, headers=headers).json()
    assert again["id"] == first["id"]
    good(client.post(f"{first['links']['self']}/cancel"))
    ids = [job["id"] for job in good(client.get("/v1/layouts"))["items"]]
    assert {first["id"], found["id"]} <= set(ids)
    assert tuned["id"] not in ids
    assert found["id"] not in [job["id"] for job in good(client.get("/v1/tunes"))["items"]]
    page = good(client.get("/v1/layouts", params={"limit": 1}))
    rest = good(client.get("/v1/layouts", params={"cursor": page["next"]}))
    assert [job["id"] for job in page["items"] + rest["items"]] == ids
    for other in (f"/v1/tunes/{found['id']}", f"/v1/layouts/{tuned['id']}"):
        refused(client.get(other), 404)
        refused(client.delete(other), 404)
        refused(client.get(f"{other}/report"), 404)


def test_layouts_that_divide_nothing_are_refused_at_once(client: httpx.Client) -> None:
    problem = refused(client.post("/v1/layouts", json={**LAYOUTS, "tp": 3}), 422)
    assert "No layout divides 4 GPUs" in problem["detail"]


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"gpus": None}, "#/gpus"),
        ({"gpus": "4"}, "#/gpus"),
        ({"gpus": 0}, "#/gpus"),
        ({"gpus": (1 << 16) + 1}, "#/gpus"),
        ({"global_batch_size": (1 << 20) + 1}, "#/global_batch_size"),
        ({"gpus": 8, "global_batch_size": 1 << 20}, "#/global_batch_size"),
        (
            {"gpus": 55440, "global_batch_size": 55440, "model": "llama3-405b",
             "seq_length": 1 << 17, "overrides": []},
            "#/gpus",
        ),
        ({"overrides": ["num_hidden_layers=4096", "hidden_size=256"]}, "#/model"),
        ({"model": "no-such-model"}, "#"),
        ({"micro_batch_size": 1 << 20}, "#/micro_batch_size"),
        ({"nodes": 3}, "#/nodes"),
        ({"grad_accumulation": 2}, "#/grad_accumulation"),
        ({"search": "bayes"}, "#/search"),
        ({"seed": 1}, "#/seed"),
        ({"objective": "measure"}, "#/objective"),
    ],
)  # fmt: skip
def test_faults_are_pointed_at(client: httpx.Client, changed: dict[str, Any], pointer: str) -> None:
    problem = refused(client.post("/v1/layouts", json={**LAYOUTS, **changed}), 422)
    assert pointer in [fault["pointer"] for fault in problem["errors"]], problem


@pytest.mark.parametrize("missing", ["gpus", "global_batch_size"])
def test_both_are_needed_here_and_refused_by_a_tune(client: httpx.Client, missing: str) -> None:
    asked = {name: value for name, value in LAYOUTS.items() if name != missing}
    problem = refused(client.post("/v1/layouts", json=asked), 422)
    assert [fault["pointer"] for fault in problem["errors"]] == [f"#/{missing}"]
    refused(client.post("/v1/layouts", json=CELL), 422)
    one = {**SMALL, missing: LAYOUTS[missing]}
    problem = refused(client.post("/v1/tunes", json=one), 422)
    assert [fault["pointer"] for fault in problem["errors"]] == [f"#/{missing}"]


def test_layouts_that_cannot_fit_are_told_at_once_what_would(client: httpx.Client) -> None:
    asked = {**LAYOUTS, "model": "gpt3-175b", "overrides": [], "gpus": 8, "global_batch_size": 512}
    problem = refused(client.post("/v1/layouts", json=asked), 422)
    assert (problem["title"], problem["reason"]) == ("Infeasible plan", "memory")
    assert problem["change"]["gpus"] > 8
    assert f"gpus = {problem['change']['gpus']}" in problem["detail"]


def test_stop_and_keep(client: httpx.Client) -> None:
    place = client.post("/v1/layouts", json=LONG).headers["location"]
    good(client.post(f"{place}/finish"))
    done = ended(client, place)
    assert (done["state"], done["stopped_by"]) == ("done", "user")
    result = done["result"]
    assert (result["stopped_by"], result["optimality"]) == ("user", "best_found")
    assert result["best_without_domino"] is None
    assert result["layouts"][0]["domino_gain"] is None
    assert result["simulation"]["speedup"] > 0
