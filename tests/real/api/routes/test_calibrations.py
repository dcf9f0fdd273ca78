"""Calibrations, from the runs to the profile in the library, against what the verb gives here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.requests import CalibrateRequest
from domino_tune.store.profiles import parse_profile
from domino_tune.verbs.calibrate import calibrate
from tests.real.api.routes.conftest import Jobs
from tests.real.api.routes.kinds import CALIBRATION, as_json
from tests.support.asked import ended, good, refused
from tests.support.door.measurements import RUNS, runs_table


def test_it_learns_what_the_verb_learns(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    table = tmp_path / "runs.csv"
    table.write_text(runs_table([*RUNS]))
    asked = CalibrateRequest(profile="h100-dgx", runs=str(table), name="fitted")
    local, done = as_json(calibrate(asked)), jobs.done("calibration")
    assert jobs.asked("calibration")["request"] == {**CALIBRATION, "runs": 2}
    assert local.pop("path") == str(tmp_path / "profiles" / "fitted.json")
    assert local["profile"]["name"] == done["result"]["profile"]["name"] == "fitted"
    # The profile's provenance names the file.
    assert {**done["result"], "profile": None} == {**local, "profile": None}


def test_the_profile_is_in_the_library(client: httpx.Client, jobs: Jobs) -> None:
    done = jobs.done("calibration")
    file = client.get("/v1/profiles/fitted").content
    assert file == client.get(done["links"]["profile"]).content
    profile = parse_profile(file, source="fitted")
    assert profile.content_id == done["result"]["profile"]["content_id"]
    assert profile.calibration is not None
    assert profile.calibration.provenance.source == "2 measured iterations: of a request"
    run = {k: v for k, v in RUNS[0].items() if k not in ("label", "measured_ms")}
    asked = {**run, "profile": "fitted", "strategy": "megatron"}
    told = good(client.post("/v1/simulations", json=asked))
    assert told["iteration_ms"] == pytest.approx(RUNS[0]["measured_ms"], rel=0.02)
    again = {**CALIBRATION, "name": "more", "profile": "fitted"}
    refused(client.post("/v1/calibrations", json=again), 422)


def test_a_table_asks_for_the_same(client: httpx.Client, jobs: Jobs) -> None:
    asked = {**CALIBRATION, "runs": runs_table([*RUNS])}
    again = good(client.post("/v1/calibrations", json=asked), 202)
    found = ended(client, again["links"]["self"])
    # It may take the place of a calibrated one.
    assert found["result"] == jobs.done("calibration")["result"]


def test_no_other_profile_is_lost(client: httpx.Client) -> None:
    made = client.post(
        "/v1/profiles/joined/import?format=gemm-csv&into=h100-dgx",
        content="m,n,k,us\n4096,12288,4096,650\n", headers={"Content-Type": "text/csv"},
    )  # fmt: skip
    good(made, 201)
    asked = {**CALIBRATION, "name": "joined"}
    assert "another name" in refused(client.post("/v1/calibrations", json=asked), 409)["detail"]
    good(client.delete("/v1/profiles/joined"), 204)


def test_runs_that_contradict_each_other_fail_the_job(client: httpx.Client) -> None:
    odd: list[dict[str, Any]] = [RUNS[0], {**RUNS[1], "measured_ms": 10 * RUNS[1]["measured_ms"]}]
    asked = {**CALIBRATION, "runs": odd, "name": "never"}
    job = good(client.post("/v1/calibrations", json=asked), 202)
    failed = ended(client, job["links"]["self"])
    assert failed["state"] == "failed"
    assert failed["error"]["type"] == "/docs/problems#bad-input"
    assert "contradict" in failed["error"]["detail"]
    refused(client.get("/v1/profiles/never"), 404)
    refused(client.get(f"{job['links']['self']}/profile"), 404)


def test_notes_and_roundings_come_with_the_answer(client: httpx.Client) -> None:
    noted = [{**RUNS[0], "note": "not looked at: x", "rounding_ms": 0.5}, RUNS[1]]
    asked = {**CALIBRATION, "runs": runs_table(noted), "name": "noted"}
    job = good(client.post("/v1/calibrations", json=asked), 202)
    assert ended(client, job["links"]["self"])["result"]["notes"] == ["not looked at: x"]
