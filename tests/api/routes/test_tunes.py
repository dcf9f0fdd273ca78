"""Tunes, from the request to the plan file, against what the same verbs give locally."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.report.ties import ties
from domino_tune.requests import PlanExportRequest
from domino_tune.results import to_json
from domino_tune.store.plans import load_plan
from domino_tune.store.profiles import dump_profile, load_profile
from domino_tune.verbs.plan import plan_export
from domino_tune.verbs.tune import tune
from tests.api.asked import CELL, LONG, SMALL, TUNE, ended, good, refused
from tests.processes import PATIENCE_S


def test_a_tune_is_a_job_with_a_place(client: httpx.Client) -> None:
    answer = client.post("/v1/tunes", json={**SMALL, "seed": 5})
    job = good(answer, 202)
    assert answer.headers["location"] == f"/v1/tunes/{job['id']}" == job["links"]["self"]
    assert int(answer.headers["retry-after"]) >= 1
    assert job["request"] == {**SMALL, "seed": 5}
    assert (job["kind"], job["result"], job["finished"]) == ("tune", None, None)
    done = ended(client, answer.headers["location"])
    assert done["state"] == "done"
    assert done["progress"]["done"] == done["progress"]["total"]
    assert done["created"] <= done["started"] <= done["finished"]
    assert done["best"].items() >= done["result"]["best"].items()


def test_a_result_is_what_the_verb_gives(tuned: Any) -> None:
    local = json.loads(json.dumps(to_json(tune(TUNE))))
    del local["seconds"]
    assert tuned["result"] == local


def test_files_are_those_of_the_verb(client: httpx.Client, tuned: Any, tmp_path: Path) -> None:
    links = tuned["links"]
    answer = client.get(links["plan"])
    good(answer)
    file = tmp_path / "plan.json"
    file.write_bytes(answer.content)
    plan = load_plan(file)
    assert plan.predicted.iteration_ms == pytest.approx(tuned["result"]["best"]["iteration_ms"])
    for one in tuned["result"]["simulation"]["verdict"]["contestants"]:
        compared = good(client.get(links["plan"], params={"of": one["strategy"]}))
        assert compared["plan"]["strategy"] == one["strategy"]
        assert round(compared["predicted"]["iteration_ms"], 6) == one["iteration_ms"]
    exportable = ("env", "megatron")
    for to in exportable:
        told = good(client.get(links["plan"], params={"to": to}))
        local = plan_export(PlanExportRequest(file=str(file), to=to))
        text = told.pop("text")
        assert told == to_json(local)
        assert all(f"export {name}=" in text for name in local.environment)
    report, trace = client.get(links["report"]), client.get(links["trace"])
    assert report.text.startswith("<!doctype html>")
    assert "sandbox" in report.headers["content-security-policy"]
    assert good(trace)["traceEvents"]


def test_a_layout_that_the_target_cannot_run_is_refused_at_once(client: httpx.Client) -> None:
    asked = {**SMALL, "target": "deepspeed", "pp": 2}
    problem = refused(client.post("/v1/tunes", json=asked), 422)
    assert (problem["reason"], "pipeline" in problem["detail"]) == ("target", True)


def test_a_plan_that_a_framework_cannot_run_is_refused(client: httpx.Client, tuned: Any) -> None:
    answer = client.get(tuned["links"]["plan"], params={"to": "deepspeed"})
    if answer.status_code != 200:
        assert refused(answer, 422)["title"] == "Infeasible plan"
    refused(client.get(tuned["links"]["plan"], params={"to": "horovod"}), 422)


def test_deepspeeds_own_order_costs_what_the_service_s_own_profile_says(
    client: httpx.Client,
) -> None:
    """The profile lies in SQL only. An odd length and width leave the two slices alone."""
    data = dump_profile(replace(load_profile("h100-dgx"), name="ours"))
    headers = {"Content-Type": "application/json"}
    good(client.put("/v1/profiles/ours", content=data, headers=headers), 201)
    asked = {
        "model": "gpt3-1.3b", "profile": "ours", "tp": 4, "seq_length": 2047, "micro_batch_size": 6,
        "overrides": ["num_hidden_layers=4", "hidden_size=2049", "head_dim=128"],
    }  # fmt: skip
    made = good(client.post("/v1/tunes", json=asked), 202)
    job = ended(client, made["links"]["self"])
    assert job["state"] == "done", job
    told = good(client.get(job["links"]["plan"], params={"to": "deepspeed"}))
    planned = job["result"]["best"]["speedup"]
    note = told["notes"][0]
    assert "in its own order (inter" in note
    assert f"x instead of {planned:.2f}x (" in note
    assert f"# {note}\n" in told["text"]
    # Without the profile nobody knows what it costs.
    client.delete("/v1/profiles/ours", headers={"If-Match": "*"})
    told = good(client.get(job["links"]["plan"], params={"to": "deepspeed"}))
    assert " instead of " not in told["notes"][0]


@pytest.mark.thorough
def test_preferences_that_are_none_are_passed_over(client: httpx.Client) -> None:
    for prefer in ("respond-async", "wait", "wait=x", "foo; wait=0"):
        answer = client.post("/v1/tunes", json={**SMALL, "seed": 6}, headers={"Prefer": prefer})
        good(answer, 202)
        assert "preference-applied" not in answer.headers
        ended(client, answer.headers["location"])
    answer = client.post("/v1/tunes", json=LONG, headers={"Prefer": "respond-async, wait=1"})
    assert answer.headers["preference-applied"] == "wait=1"
    good(answer, 202)
    good(client.post(f"{answer.headers['location']}/cancel"))


def test_one_that_runs_tells_and_can_be_called_off(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json=LONG).headers["location"]
    seen = []
    with client.stream("GET", f"{place}/events") as events:
        for line in events.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["best"] is not None:
                    break
    assert seen[-1]["state"] == "running"
    assert 0 < seen[-1]["progress"]["done"] < seen[-1]["progress"]["total"]
    assert seen[-1]["best"]["iteration_ms"] > 0
    for part in ("plan", "report", "trace"):
        assert "it is running" in refused(client.get(f"{place}/{part}"), 404)["detail"]
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
    assert ended(client, place)["result"] is None


def test_one_that_cannot_fit_is_told_at_once_what_would(client: httpx.Client) -> None:
    asked = {**CELL, "model": "gpt3-13b", "tp": 1, "search": "random", "trials": 2}
    before = [one["id"] for one in good(client.get("/v1/tunes"))["items"]]
    problem = refused(client.post("/v1/tunes", json=asked), 422)
    assert (problem["title"], problem["reason"]) == ("Infeasible plan", "memory")
    assert "the smallest change that fits: tp = " in problem["detail"]
    assert list(problem["change"]) == ["tp"]
    assert [one["id"] for one in good(client.get("/v1/tunes"))["items"]] == before
    made = good(client.post("/v1/tunes", json={**asked, **problem["change"]}), 202)
    assert ended(client, made["links"]["self"])["state"] == "done"


def test_stop_and_keep(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json=LONG).headers["location"]
    end = time.monotonic() + PATIENCE_S
    while (job := good(client.get(place)))["best"] is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    told = job["progress"]
    assert told["left"] == told["total"] - told["done"] > 0
    assert 0 < told["computed_s"] <= told["elapsed_s"] + 1
    assert 0 < told["eta_s"] <= told["limit_s"] == 3600
    assert refused(client.delete(place), 409)["title"] == "Conflict"
    good(client.post(f"{place}/finish"))
    done = ended(client, place)
    assert (done["state"], done["stopped_by"]) == ("done", "user")
    assert (done["progress"]["left"], done["progress"]["eta_s"]) == (0, 0)
    assert done["result"]["stopped_by"] == "user"
    assert done["result"]["optimality"] == "best_found"
    # Plans looked at since then may be lighter and as fast.
    assert ties(done["result"]["best"]["iteration_ms"], job["best"]["iteration_ms"])
    assert good(client.get(f"{place}/plan"))["schema"]
    assert good(client.post(f"{place}/finish")) == done
    assert client.delete(place).status_code == 204
    for path in (place, f"{place}/plan", f"{place}/events"):
        refused(client.get(path), 404)
    refused(client.delete(place), 404)


@pytest.mark.thorough
def test_what_frameworks_run_is_said_beside_it(client: httpx.Client) -> None:
    asked = {**CELL, "seq_length": 2048, "micro_batch_size": 8}
    found = ended(client, good(client.post("/v1/tunes", json=asked), 202)["links"]["self"])
    there = {one["framework"]: one for one in found["result"]["frameworks"]}
    assert list(there) == ["Megatron-LM", "DeepSpeed"]
    for one in there.values():
        assert not one["runs_best"]
        speedup = found["result"]["baseline_ms"] / one["iteration_ms"]
        assert one["speedup"] == pytest.approx(speedup, abs=1e-5)
    rival, own = there["Megatron-LM"], there["DeepSpeed"]
    assert rival["route"] == "simulations"
    same = good(client.post("/v1/simulations", json={**asked, **rival["request"]}))
    assert (same["plan"], same["iteration_ms"]) == (rival["plan"], rival["iteration_ms"])
    assert (own["route"], own["request"]["target"]) == ("tunes", "deepspeed")
    made = good(client.post("/v1/tunes", json={**asked, **own["request"]}), 202)
    job = ended(client, made["links"]["self"])
    best = job["result"]["best"]
    assert (best["plan"], best["iteration_ms"]) == (own["plan"], own["iteration_ms"])
    again = {one["framework"]: one for one in job["result"]["frameworks"]}["DeepSpeed"]
    assert again["runs_best"]
    assert again["plan"] == best["plan"]


def test_the_same_key_makes_one_tune(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "once-1"}
    first = good(client.post("/v1/tunes", json={**SMALL, "seed": 7}, headers=headers), 202)
    again = client.post("/v1/tunes", json={**SMALL, "seed": 7}, headers=headers)
    assert again.json()["id"] == first["id"]
    other = refused(client.post("/v1/tunes", json={**SMALL, "seed": 8}, headers=headers), 422)
    assert "once-1" in other["detail"]
    ended(client, first["links"]["self"])


def test_the_same_key_needs_nothing_that_it_named(client: httpx.Client) -> None:
    data = dump_profile(replace(load_profile("h100-dgx"), name="leaving"))
    json_headers = {"Content-Type": "application/json"}
    made = client.put("/v1/profiles/leaving", content=data, headers=json_headers)
    asked, headers = {**SMALL, "profile": "leaving"}, {"Idempotency-Key": "leaving-1"}
    first = good(client.post("/v1/tunes", json=asked, headers=headers), 202)
    client.delete("/v1/profiles/leaving", headers={"If-Match": made.headers["etag"]})
    again = good(client.post("/v1/tunes", json=asked, headers=headers), 202)
    assert again["id"] == first["id"]
    refused(client.post("/v1/tunes", json=asked), 422)
    ended(client, first["links"]["self"])


def test_pages_hold_all_once_newest_first(client: httpx.Client, tuned: Any) -> None:
    made = [good(client.post("/v1/tunes", json={**SMALL, "seed": s}), 202)["id"] for s in (1, 2, 3)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        asked = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = good(client.get("/v1/tunes", params=asked))
        found += [job["id"] for job in page["items"]]
        assert all("result" not in job for job in page["items"])
        cursor = page["next"]
        if cursor is None:
            break
    assert found[:3] == made[::-1]
    assert tuned["id"] in found
    assert len(set(found)) == len(found) > 3
    for bad in ({"cursor": "x"}, {"limit": "0"}, {"limit": "1000"}, {"limit": "two"}):
        refused(client.get("/v1/tunes", params=bad), 422)
    for job in made:
        ended(client, f"/v1/tunes/{job}")


def test_what_is_not_there(client: httpx.Client, tuned: Any) -> None:
    refused(client.get(f"/v1/tunes/job_{'0' * 32}"), 404)
    refused(client.get("/v1/tunes/nonsense"), 422)
    refused(client.get(f"/v1/sweeps/{tuned['id']}"), 404)
    refused(client.delete(f"/v1/sweeps/{tuned['id']}"), 404)


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"tp": "4"}, "#/tp"),
        ({"tp": None}, "#/tp"),
        ({"model": "no-such-model"}, "#"),
        ({"model": "../secret"}, "#/model"),
        ({"objective": "measure"}, "#/objective"),
        ({"overrides": ["num_attention_heads=x"]}, "#/overrides"),
        ({"tp": 7}, "#"),
    ],
)
def test_faults_are_pointed_at(client: httpx.Client, changed: dict[str, Any], pointer: str) -> None:
    problem = refused(client.post("/v1/tunes", json={**SMALL, **changed}), 422)
    assert pointer in [fault["pointer"] for fault in problem["errors"]], problem
