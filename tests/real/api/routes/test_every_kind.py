"""What is so of every kind of job, from the request to its deletion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from domino_tune.requests import PlanExportRequest
from domino_tune.results.json_form import to_json
from domino_tune.service.jobs.job import JobKind
from domino_tune.store.plans import load_plan
from domino_tune.verbs.plan import plan_export
from tests.real.api.routes.asking import events
from tests.real.api.routes.conftest import Jobs
from tests.real.api.routes.kinds import KINDS, as_json
from tests.support.asked import described, ended, good, refused

every = pytest.mark.parametrize("kind", KINDS)


def test_all_kinds_are_here() -> None:
    assert set(KINDS) == set(get_args(JobKind))


@every
def test_it_is_a_job_with_a_place_that_ends_as_its_verb_does(
    client: httpx.Client, jobs: Jobs, kind: str
) -> None:
    told, done = jobs.asked(kind), jobs.done(kind)
    links = {"self": f"/v1/{kind}s/{told['id']}"}
    names = ("events", *KINDS[kind].links)
    assert told["links"] == links | {name: f"{links['self']}/{name}" for name in names}
    assert (told["kind"], told["result"], told["finished"]) == (kind, None, None)
    assert done["state"] == "done", done
    assert done["progress"]["done"] == done["progress"]["total"]
    assert done["created"] <= done["started"] <= done["finished"]
    if (local := KINDS[kind].local) is not None:
        assert told["request"] == KINDS[kind].small
        assert done["result"] == as_json(local())
    for name in KINDS[kind].files:
        described(client.get(done["links"][name]))


@every
def test_events_end_with_it_and_who_comes_back_gets_what_is_new(
    client: httpx.Client, jobs: Jobs, kind: str
) -> None:
    place = jobs.done(kind)["links"]["events"]
    answer = client.get(place)
    described(answer)
    last = events(answer.text)[-1]
    assert (last["event"], json.loads(last["data"])["kind"]) == ("done", kind)
    assert "result" not in json.loads(last["data"])
    again = client.get(place, headers={"Last-Event-ID": last["id"]})
    assert again.status_code == 204
    described(again)


@every
def test_lists_are_apart(client: httpx.Client, jobs: Jobs, kind: str) -> None:
    mine = jobs.done(kind)["id"]
    for other in KINDS:
        found = good(client.get(f"/v1/{other}s", params={"q": mine}))["items"]
        assert [job["id"] for job in found] == ([mine] if other == kind else [])
        if other != kind:
            refused(client.get(f"/v1/{other}s/{mine}"), 404)
            refused(client.delete(f"/v1/{other}s/{mine}"), 404)
            refused(client.get(f"/v1/{other}s/{mine}/{KINDS[other].links[0]}"), 404)
    assert good(client.get(f"/v1/jobs/{mine}")) == jobs.done(kind)


@every
def test_a_key_makes_one_that_runs_and_is_called_off(client: httpx.Client, kind: str) -> None:
    keyed, known = {"Idempotency-Key": f"{kind}-1"}, KINDS[kind]
    first = good(client.post(f"/v1/{kind}s", json=known.long, headers=keyed), 202)
    assert (
        good(client.post(f"/v1/{kind}s", json=known.long, headers=keyed), 202)["id"]
        == (first["id"])
    )
    problem = refused(client.post(f"/v1/{kind}s", json=known.small, headers=keyed), 422)
    assert f"{kind}-1" in problem["detail"]
    place = first["links"]["self"]
    seen: list[Any] = []
    with client.stream("GET", f"{place}/events") as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["state"] == "running":
                    break
    refused(client.delete(place), 409)
    for file in known.files:
        assert "it is running" in refused(client.get(f"{place}/{file}"), 404)["detail"]
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
    assert ended(client, place)["result"] is None
    good(client.delete(place), 204)
    for path in (place, f"{place}/events", *(f"{place}/{name}" for name in known.links)):
        refused(client.get(path), 404)
    refused(client.delete(place), 404)


@pytest.mark.parametrize("kind", ["tune", "layout"])
def test_files_are_those_of_the_best(
    client: httpx.Client, jobs: Jobs, kind: str, tmp_path: Path
) -> None:
    links, result = jobs.done(kind)["links"], jobs.done(kind)["result"]
    best = result["best"] if kind == "tune" else result["layouts"][0]
    assert jobs.done(kind)["best"].items() >= best.items()
    file = tmp_path / "plan.json"
    file.write_bytes(client.get(links["plan"]).content)
    plan = load_plan(file)
    assert plan.cluster.world_size == 4
    assert plan.predicted.iteration_ms == pytest.approx(best["iteration_ms"])
    for one in result["simulation"]["verdict"]["contestants"]:
        compared = good(client.get(links["plan"], params={"of": one["strategy"]}))
        assert compared["plan"]["strategy"] == one["strategy"]
        assert round(compared["predicted"]["iteration_ms"], 6) == one["iteration_ms"]
    for to in ("env", "megatron"):
        told = good(client.get(links["plan"], params={"to": to}))
        local, text = plan_export(PlanExportRequest(file=str(file), to=to)), told.pop("text")
        assert told == to_json(local)
        assert all(f"export {name}=" in text for name in local.environment)
    report = client.get(links["report"])
    assert report.text.startswith("<!doctype html>")
    assert "sandbox" in report.headers["content-security-policy"]
    assert good(client.get(links["trace"]))["traceEvents"]
