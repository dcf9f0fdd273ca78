"""Calibrations, from the runs to the profile in the library, against what the verb gives here."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from domino_tune.requests import CalibrateRequest, SimulateRequest
from domino_tune.results.json_form import to_json
from domino_tune.store.profiles import parse_profile
from domino_tune.verbs.calibrate import calibrate
from domino_tune.verbs.simulate import simulate
from tests.real.api.asked import ended, good, refused
from tests.real.api.routes.test_events import events

SHARED: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "seq_length": 512, "overrides": ["num_hidden_layers=2"],
    "cuda_graph": True,
}  # fmt: skip
LAYOUTS: Final[tuple[dict[str, Any], ...]] = (
    {"tp": 4, "micro_batch_size": 4},
    {"tp": 2, "micro_batch_size": 2},
)


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    """Two runs, 8 % slower than predicted."""
    found = []
    for number, layout in enumerate(LAYOUTS):
        asked = {**SHARED, **layout, "overrides": tuple(SHARED["overrides"])}
        here = simulate(SimulateRequest(**asked, profile="h100-dgx", strategy="megatron"))
        found.append(
            {**SHARED, **layout, "label": f"run {number}", "measured_ms": 1.08 * here.iteration_ms}
        )
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("home")
        patched.setenv("DOMINO_TUNE_HOME", str(folder))
        yield folder


def body(runs: Any, name: str = "fitted", profile: str = "h100-dgx") -> dict[str, Any]:
    return {"profile": profile, "name": name, "runs": runs}


def table(runs: list[dict[str, Any]]) -> str:
    """The runs as a table."""
    out = io.StringIO()
    rows = [{**one, "overrides": " ".join(one["overrides"]), "cuda_graph": "yes"} for one in runs]
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.fixture(scope="module")
def done(client: httpx.Client, runs: list[dict[str, Any]]) -> Any:
    """The JSON of a calibration that is done."""
    answer = client.post("/v1/calibrations", json=body(runs))
    job = good(answer, 202)
    assert answer.headers["location"] == f"/v1/calibrations/{job['id']}" == job["links"]["self"]
    assert job["request"] == {"profile": "h100-dgx", "name": "fitted", "runs": 2}
    found = ended(client, answer.headers["location"])
    assert found["state"] == "done", found
    return found


def test_it_learns_what_the_verb_learns(
    done: Any, runs: list[dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_text(table(runs))
    asked = CalibrateRequest(profile="h100-dgx", runs=str(tmp_path / "runs.csv"), name="fitted")
    local = json.loads(json.dumps(to_json(calibrate(asked))))
    assert local.pop("path") == str(home / "profiles" / "fitted.json")
    for one in (local, done["result"]):
        one = one["profile"]  # its provenance names the file
        assert one["name"] == "fitted"
    assert {**done["result"], "profile": None} == {**local, "profile": None}


def test_the_profile_is_in_the_library(client: httpx.Client, done: Any) -> None:
    file = client.get("/v1/profiles/fitted").content
    assert file == client.get(done["links"]["profile"]).content
    profile = parse_profile(file, source="fitted")
    assert profile.content_id == done["result"]["profile"]["content_id"]
    assert profile.calibration is not None
    assert profile.calibration.provenance.source == "2 measured iterations: of a request"
    asked = {**SHARED, **LAYOUTS[0], "profile": "fitted", "strategy": "megatron"}
    told = good(client.post("/v1/simulations", json=asked))
    measured = done["result"]["runs"][0]["measured_ms"]
    assert told["iteration_ms"] == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"tp": 7}, "num_attention_heads = 16 is not divisible by tp = 7"),
        ({"tp": 4, "pp": 4}, "num_hidden_layers = 2 is not divisible by pp = 4"),
        ({"tp": 4, "strategy": "domino", "row_slices": 8}, "row_slices = 8 needs at least as many"),
        ({"tp": 4, "strategy": "domino", "attn_col_slices": 3}, "attn_col_slices = 3"),
        ({"tp": 16, "strategy": "userbuffers"}, "inside one node"),
    ],
)
def test_an_impossible_layout_is_refused_at_once(
    client: httpx.Client, runs: list[dict[str, Any]], layout: dict[str, Any], said: str
) -> None:
    bad = [runs[0], {**SHARED, "micro_batch_size": 4, "measured_ms": 10.0, **layout}]
    problem = refused(client.post("/v1/calibrations", json=body(bad)), 422)
    assert [fault["pointer"] for fault in problem["errors"]] == ["#/runs/1"]
    assert problem["detail"].startswith("run 2: ")
    assert said in problem["detail"]


def test_a_table_asks_for_the_same(
    client: httpx.Client, done: Any, runs: list[dict[str, Any]]
) -> None:
    again = good(client.post("/v1/calibrations", json=body(table(runs))), 202)
    found = ended(client, again["links"]["self"])
    assert found["result"] == done["result"]  # and it may take the place of a calibrated one


def test_events_lists_and_deletion(client: httpx.Client, runs: list[dict[str, Any]]) -> None:
    job = good(client.post("/v1/calibrations", json=body(runs, "passing")), 202)
    told = events(client.get(job["links"]["events"]).text)
    assert told[-1]["event"] == "done"
    listed = good(client.get("/v1/calibrations", params={"state": "done"}))["items"]
    assert job["id"] in [one["id"] for one in listed]
    assert client.delete(job["links"]["self"]).status_code == 204
    refused(client.get(job["links"]["self"]), 404)
    good(client.get("/v1/profiles/passing"))


def test_no_other_profile_is_lost(client: httpx.Client, runs: list[dict[str, Any]]) -> None:
    query = "format=gemm-csv&into=h100-dgx"
    made = client.post(
        f"/v1/profiles/joined/import?{query}", content="m,n,k,us\n4096,12288,4096,650\n",
        headers={"Content-Type": "text/csv"},
    )  # fmt: skip
    assert made.status_code == 201, made.text
    for name in ("h100-dgx", "a100-sxm", "joined"):
        problem = refused(client.post("/v1/calibrations", json=body(runs, name)), 409)
        assert "another name" in problem["detail"]
    assert client.delete("/v1/profiles/joined").status_code == 204


def test_faults_are_pointed_at(client: httpx.Client, runs: list[dict[str, Any]], done: Any) -> None:
    first, second = runs
    cases: list[tuple[Any, str]] = [
        ([first], "#/runs"),
        ([first, {**second, "model": "nonsense"}], "#/runs/1"),
        ([first, {**second, "measured_ms": 0}], "#/runs/1/measured_ms"),
        ([first, {**second, "measured_ms": 1e308}], "#/runs/1/measured_ms"),
        ([first, {**second, "tp": 4096, "dp": 4096}], "#/runs/1/dp"),
        ([first, {**second, "seq_length": 10**9}], "#/runs/1/seq_length"),
        ([first, {**second, "overrides": ["hidden_size=100000000"]}], "#/runs/1/overrides/0"),
        (
            [
                first,
                {
                    **second,
                    "overrides": ["num_hidden_layers=4096"],
                    "pp": 64,
                    "grad_accumulation": 8000,
                },
            ],
            "#/runs/1/model",
        ),
        ([first, {**second, "plan": {}}], "#/runs/1/plan"),
        ([first] * 65, "#/runs"),
        ("measured_ms\n", "#/runs"),
        (table(runs).replace("tp", "pt"), "#/runs"),
        (table(runs).replace("512", "512000000"), "#/runs"),
        (table([first] * 65), "#/runs"),
    ]
    for given, place in cases:
        problem = refused(client.post("/v1/calibrations", json=body(given)), 422)
        assert {one["pointer"] for one in problem["errors"]} == {place}, (given, problem)
    refused(client.post("/v1/calibrations", json=body(runs, "more", profile="fitted")), 422)


def test_runs_that_contradict_each_other_fail_the_job(
    client: httpx.Client, runs: list[dict[str, Any]]
) -> None:
    odd = [runs[0], {**runs[0], "measured_ms": 3 * runs[0]["measured_ms"]}]
    job = good(client.post("/v1/calibrations", json=body(odd, "never")), 202)
    failed = ended(client, job["links"]["self"])
    assert failed["state"] == "failed"
    assert failed["error"]["type"] == "/docs/problems#bad-input"
    assert "contradict" in failed["error"]["detail"]
    refused(client.get("/v1/profiles/never"), 404)
    refused(client.get(f"{job['links']['self']}/profile"), 404)


def test_what_takes_too_long_can_be_called_off(
    client: httpx.Client, runs: list[dict[str, Any]]
) -> None:
    long = [
        {**one, "overrides": ["num_hidden_layers=96"], "measured_ms": 50 * one["measured_ms"]}
        for one in runs * 20
    ]
    job = good(client.post("/v1/calibrations", json=body(long, "long")), 202)
    good(client.post(f"{job['links']['self']}/cancel"))
    assert ended(client, job["links"]["self"])["state"] == "cancelled"
    refused(client.get("/v1/profiles/long"), 404)
