"""Jobs over HTTP: one contract for all kinds, and what only one kind has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from domino_tune.store.plans import plan_from_json
from tests.real.api.page_steps import SCALE, measured
from tests.support.asked import CELL, LAYOUTS, LONG, SMALL, ended, good, job, refused
from tests.support.processes import wait_until
from tests.support.service import Service, serving

RUNS = [
    {
        "model": "gpt3-1.3b", "seq_length": 512, "tp": tp, "micro_batch_size": tp,
        "overrides": ["num_hidden_layers=2"], "measured_ms": measured_ms,
    }
    for tp, measured_ms in ((4, 12.0), (2, 11.0))
]  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "tune": SMALL,
    "layout": LAYOUTS,
    "scale": {**SCALE, "overrides": ["num_hidden_layers=4"]},
    "whatif": {**CELL, "sweep": "link_bandwidth=0.5x,2x"},
    "calibrate": {"profile": "h100-dgx", "name": "fitted", "runs": RUNS},
}
FILES = {
    "tune": ["plan", "report", "trace", "plan-megatron"], "layout": ["plan", "report", "trace"],
    "scale": ["points"], "whatif": ["points"], "calibrate": ["profile"],
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("kinds"), workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


def finished(client: httpx.Client, kind: str) -> Any:
    """A job of the kind that is done; the same for all tests."""
    headers = {"Prefer": "wait=30", "Idempotency-Key": f"one-{kind}"}
    made = client.post("/v1/jobs", json=job(BODIES[kind], kind), headers=headers)
    good(made, made.status_code)
    found = ended(client, made.json()["links"]["self"])
    assert found["state"] == "done", found["error"]
    return found


@pytest.mark.parametrize("kind", BODIES)
class TestEveryKind:
    """The contract of a kind of job."""

    def test_it_is_done(self, client: httpx.Client, kind: str) -> None:
        found = finished(client, kind)
        assert (found["kind"], found["attempts"], found["error"]) == (kind, 1, None)
        assert found["progress"]["text"] == "done"
        assert found["progress"]["left"] == 0
        assert found["result"]
        listed = good(client.get("/v1/jobs", params={"kind": kind}))["items"]
        assert found["id"] in [one["id"] for one in listed]

    def test_its_key_gives_it_again(self, client: httpx.Client, kind: str) -> None:
        found = finished(client, kind)
        same = {"Idempotency-Key": f"one-{kind}"}
        again = client.post("/v1/jobs", json=job(BODIES[kind], kind), headers=same)
        assert good(again)["id"] == found["id"]
        other = job({**BODIES[kind], "profile": "a100-sxm"}, kind)
        refused(client.post("/v1/jobs", json=other, headers=same), 422)

    def test_its_files(self, client: httpx.Client, kind: str) -> None:
        place = finished(client, kind)["links"]["files"]
        for name in FILES[kind]:
            answer = client.get(place.format(name=name))
            assert answer.status_code == 200, name
            assert answer.headers["etag"]
        refused(client.get(place.format(name="nothing")), 404)

    def test_its_events(self, client: httpx.Client, kind: str) -> None:
        found = finished(client, kind)
        text = client.get(found["links"]["events"]).text
        (said,) = [line for line in text.splitlines() if line.startswith("data: ")]
        assert json.loads(said.removeprefix("data: "))["state"] == "done"
        last = text.split("id: ")[1].split()[0]
        seen = client.get(found["links"]["events"], headers={"Last-Event-ID": last})
        assert seen.status_code == 204

    def test_stopped_once_it_is_done_it_stays(self, client: httpx.Client, kind: str) -> None:
        found = finished(client, kind)
        assert good(client.post(found["links"]["stop"])) == found


def test_one_question_gets_a_tuned_configuration(client: httpx.Client) -> None:
    headers = {"Prefer": "wait=30"}
    asked = job({**SMALL, "seed": 5})
    answer = client.post("/v1/jobs", json=asked, headers=headers)
    found = good(answer)
    assert answer.headers["preference-applied"] == "wait=30"
    assert answer.headers["location"] == found["links"]["self"]
    place = found["links"]["files"].format(name="plan")
    plan = client.get(place).json()
    assert plan_from_json(plan, source="it").predicted.iteration_ms == pytest.approx(
        found["result"]["best"]["iteration_ms"]
    )
    to = client.get(place, params={"to": "env"}).json()
    assert to["text"]
    swept = {"plan": plan, "sweep": "link_bandwidth=1x,2x"}
    good(client.post("/v1/jobs", json=job(swept, "whatif"), headers=headers))
    simulated = good(client.post("/v1/simulations", json={"plan": plan}))
    what_if = {"plan": plan, "change": ["link_bandwidth=1x"]}
    base = good(client.post("/v1/what-ifs", json=what_if))["base"]
    assert base["iteration_ms"] == simulated["iteration_ms"]


def test_a_long_one_is_stopped_and_another_deleted(client: httpx.Client) -> None:
    asked = client.post("/v1/jobs", json=job(LONG), headers={"Prefer": "wait=1"})
    kept, gone = good(asked, 202), good(client.post("/v1/jobs", json=job({**LONG, "seed": 1})), 202)
    assert int(asked.headers["retry-after"]) > 0
    wait_until(lambda: good(client.get(kept["links"]["self"]))["progress"]["done"] > 1)
    good(client.post(kept["links"]["stop"]))
    found = ended(client, kept["links"]["self"])
    assert (found["state"], found["stopped_by"]) == ("done", "user")
    assert found["result"]["optimality"] == "best_found"
    with client.stream("GET", gone["links"]["events"]) as events:
        assert client.delete(gone["links"]["self"]).status_code == 204
        assert "event: " in "".join(events.iter_text())
    refused(client.get(gone["links"]["self"]), 404)


def test_a_validation_stands_beside_its_tune(client: httpx.Client) -> None:
    tune = finished(client, "tune")
    said = {"of": tune["id"], "result": measured(tune["result"]["best"])}
    found = good(client.post("/v1/jobs", json=job(said, "validate")))
    assert (found["state"], found["request"]["of"]) == ("done", tune["id"])
    mine = next(one for one in found["result"]["plans"] if one["tuned"])
    assert mine["measured_ms"] == pytest.approx(2 * mine["predicted_ms"])
    page = good(client.get("/v1/jobs", params={"kind": "validate", "of": tune["id"]}))
    assert [one["id"] for one in page["items"]] == [found["id"]]
    other = json.loads(json.dumps(said))
    other["result"]["workload"]["seq_length"] *= 2
    problem = refused(client.post("/v1/jobs", json=job(other, "validate")), 422)
    assert problem["errors"][0]["pointer"] == "#/result/workload"
    other = json.loads(json.dumps(said))
    other["result"]["plans"][0]["measured"]["iteration_ms"] = -1.0
    problem = refused(client.post("/v1/jobs", json=job(other, "validate")), 422)
    assert problem["errors"][0]["pointer"].startswith("#/result/plans/0")
    of_layouts = {**said, "of": finished(client, "layout")["id"]}
    refused(client.post("/v1/jobs", json=job(of_layouts, "validate")), 409)


def test_a_calibrated_profile_is_in_the_library(client: httpx.Client) -> None:
    finished(client, "calibrate")
    profile = client.get("/v1/profiles/fitted")
    assert profile.json()["calibration"]["base"] == "h100-dgx"
    answer = client.post("/v1/simulations", json={**CELL, "profile": "fitted"})
    assert good(answer)["profile"]["name"] == "fitted"
    table = "model,seq_length,tp,micro_batch_size,overrides,measured_ms\n" + "".join(
        f"gpt3-1.3b,512,{tp},{tp},num_hidden_layers=2,{ms}\n" for tp, ms in ((4, "12.5"), (2, "11"))
    )
    asked = {"profile": "h100-dgx", "name": "again", "runs": table}
    good(client.post("/v1/jobs", json=job(asked, "calibrate"), headers={"Prefer": "wait=30"}))
    asked["runs"] = table.replace("12.5", "0")
    problem = refused(client.post("/v1/jobs", json=job(asked, "calibrate")), 422)
    assert problem["errors"][0]["pointer"] == "#/runs"
