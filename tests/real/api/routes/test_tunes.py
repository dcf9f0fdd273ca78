"""Tunes: what is refused at once, their pace, keys and pages, and plans for frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx

from domino_tune.report.ties import ties
from domino_tune.store.profiles import dump_profile, load_profile
from tests.real.api.routes.asking import best_so_far
from tests.support.asked import CELL, LONG, SMALL, ended, good, listed, refused


def test_a_layout_that_the_target_cannot_run_is_refused_at_once(client: httpx.Client) -> None:
    asked = {**SMALL, "target": "deepspeed", "pp": 2}
    problem = refused(client.post("/v1/tunes", json=asked), 422)
    assert (problem["reason"], "pipeline" in problem["detail"]) == ("target", True)


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


def test_a_plan_is_of_frameworks_that_are_known(client: httpx.Client, tuned: Any) -> None:
    refused(client.get(tuned["links"]["plan"], params={"to": "horovod"}), 422)


def test_preferences_that_are_none_are_passed_over(client: httpx.Client) -> None:
    for prefer in ("respond-async", "wait", "wait=x", "foo; wait=0", "respond-async, wait=1"):
        answer = client.post("/v1/tunes", json=LONG, headers={"Prefer": prefer})
        good(answer, 202)
        applied = "wait=1" if prefer.endswith("wait=1") else None
        assert answer.headers.get("preference-applied") == applied
        good(client.post(f"{answer.headers['location']}/cancel"))


def test_one_that_runs_tells_its_pace_and_keeps_its_best(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json=LONG).headers["location"]
    told = best_so_far(client, place)
    pace = told["progress"]
    assert told["best"]["iteration_ms"] > 0
    assert pace["left"] == pace["total"] - pace["done"] > 0
    assert pace["done"] > 0
    assert 0 < pace["computed_s"] <= pace["elapsed_s"] + 1
    assert 0 < pace["eta_s"] <= pace["limit_s"] == 3600
    good(client.post(f"{place}/finish"))
    done = ended(client, place)
    assert (done["state"], done["stopped_by"]) == ("done", "user")
    assert (done["progress"]["left"], done["progress"]["eta_s"]) == (0, 0)
    assert (done["result"]["stopped_by"], done["result"]["optimality"]) == ("user", "best_found")
    # Plans looked at since then may be lighter and as fast.
    assert ties(done["result"]["best"]["iteration_ms"], told["best"]["iteration_ms"])
    assert good(client.get(f"{place}/plan"))["schema"]
    assert good(client.post(f"{place}/finish")) == done
    good(client.delete(place), 204)
    refused(client.get(f"{place}/plan"), 404)


def test_pages_hold_all_once_newest_first(client: httpx.Client, tuned: Any) -> None:
    made = [good(client.post("/v1/tunes", json={**SMALL, "seed": s}), 202)["id"] for s in (1, 2, 3)]
    found = listed(client, "tunes", limit="2")
    assert found[:3] == made[::-1]
    assert tuned["id"] in found
    assert len(set(found)) == len(found) > 3
    for job in made:
        good(client.post(f"/v1/tunes/{job}/cancel"))


def test_a_plan_file_is_found_by_what_it_was_made_for(client: httpx.Client, tuned: Any) -> None:
    plan = client.get(tuned["links"]["plan"]).text
    asked = f'{{"plan": {plan}, "sweep": "link_bandwidth=1x,2x"}}'
    headers = {"Content-Type": "application/json"}
    job = good(client.post("/v1/sweeps", content=asked, headers=headers), 202)
    assert job["request"]["plan"]["model"] == "gpt3-1.3b"
    assert job["id"] in listed(client, "sweeps", model="gpt3-1.3b", profile="h100-dgx")
    assert job["id"] not in listed(client, "sweeps", model="gpt3-2.7b")
