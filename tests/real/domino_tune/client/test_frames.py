"""Frames of lists and sweeps, and the calls for profiles, against a service in a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_tune.base.errors import ConflictError, NotFoundError, PreconditionError, ServiceError
from domino_tune.client import Client, Listing
from domino_tune.requests import CalibrateRequest, ProfilesImportRequest, WhatIfRequest
from domino_tune.verbs.whatif import whatif
from simulator.errors import InputError
from tests.real.domino_tune.client.test_server import ASKED, WORKLOAD
from tests.real.domino_tune.serving import Served, served

RUNS = (
    "model,seq_length,tp,micro_batch_size,overrides,measured_ms\n"
    "gpt3-1.3b,512,4,4,num_hidden_layers=2,{}\ngpt3-1.3b,512,2,2,num_hidden_layers=2,{}\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("frames")) as running:
        yield running


@pytest.fixture
def client(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.delenv("DOMINO_TUNE_TOKEN", raising=False)
    with Client(server.url) as made:
        yield made


def test_a_sweep_is_the_frame_of_the_verb(client: Client) -> None:
    sweep = WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=0.5x,2x")
    there, here = client.sweep(sweep).to_frame(), whatif(sweep).to_frame()
    assert list(there.columns) == list(here.columns)
    assert there["link_bandwidth"].tolist() == ["", "0.5x", "2x"]
    assert there["iteration_ms"].tolist() == pytest.approx(here["iteration_ms"].tolist(), abs=1e-6)
    one = client.submit_sweep(sweep)
    if not one.ended:
        with pytest.raises(ServiceError, match="has no result"):
            one.to_frame()
    client.wait(one)


def test_lists_of_jobs_are_filtered_and_framed(client: Client) -> None:
    done = client.wait(client.submit_tune(ASKED))
    page = client.jobs(kind="tune", state="done", model="gpt3-1.3b", limit=5)
    found = page.to_frame().set_index("id").loc[done.id]
    assert (found["state"], found["model"], found["tp"]) == ("done", "gpt3-1.3b", 2)
    assert found["iteration_ms"] > 0
    assert client.jobs(kind="tune", model="gpt3-2.7b").items == ()
    assert list(client.jobs(kind="tune", model="gpt3-2.7b").to_frame().columns) == []
    with pytest.raises(InputError, match="state"):
        client.jobs(kind="tune", state="odd")
    with pytest.raises(InputError, match="no points"):
        done.to_frame()


def test_profiles_and_models_are_framed(client: Client) -> None:
    profiles = client.profiles(limit=2)
    assert isinstance(profiles, Listing)
    frame = profiles.to_frame()
    assert frame["name"].tolist() == [one["name"] for one in profiles["items"]]
    assert set(profiles["items"][0]["sections"]) <= set(frame.columns)
    models = client.models().to_frame().set_index("name")
    assert models.loc["llama2-7b", "hidden_size"] == 4096


def test_a_table_is_imported_and_the_profile_deleted(client: Client, tmp_path: Path) -> None:
    (tmp_path / "gemms.csv").write_text("m,n,k,us\n4096,12288,4096,650\n")
    asked = ProfilesImportRequest(
        file=str(tmp_path / "gemms.csv"), format="gemm-csv", into="h100-dgx", name="ours"
    )
    assert client.import_profile(asked)["rows"] == 1
    with pytest.raises(PreconditionError):
        client.import_profile(asked)  # it is there
    _, etag = client.get_profile("ours")
    (tmp_path / "gemms.csv").write_text("m,n,k,us\n8192,12288,4096,1280\n")
    more = ProfilesImportRequest(
        file=str(tmp_path / "gemms.csv"), format="gemm-csv", into="ours", name="ours"
    )
    assert client.import_profile(more, if_match=etag)["rows"] == 1
    with pytest.raises(PreconditionError):
        client.delete_profile("ours", if_match=etag)
    _, etag = client.get_profile("ours")
    client.delete_profile("ours", if_match=etag)
    with pytest.raises(NotFoundError):
        client.delete_profile("ours")
    with pytest.raises(ConflictError, match="read-only"):
        client.delete_profile("h100-dgx")
    for wrong in ({"file": str(tmp_path / "none.csv")}, {"into": "profiles/mine.json"}):
        fields = {"file": asked.file, "format": "gemm-csv", "into": "h100-dgx", "name": "ours"}
        with pytest.raises(InputError):
            client.import_profile(ProfilesImportRequest(**{**fields, **wrong}))  # type: ignore[arg-type]


def test_a_calibration_is_kept_and_told(client: Client, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(RUNS.format(12.0, 11.0))
    asked = CalibrateRequest(profile="h100-dgx", runs=str(tmp_path / "runs.csv"), name="fitted")
    texts: list[str] = []
    answer = client.calibrate(asked, texts.append)
    assert answer.result.path is None
    assert "Kept as fitted." in str(answer.result)
    assert list(answer.result.to_frame()["measured_ms"]) == [12.0, 11.0]
    assert texts[-1].startswith("done")
    assert all(texts)
    assert client.job(answer.id).kind == "calibration"
    assert answer.id in [one.id for one in client.jobs(kind="calibration", state="done").items]
    assert client.get_profile("fitted")[0]
    taken = CalibrateRequest(profile="h100-dgx", runs=asked.runs, name="a100-sxm")
    with pytest.raises(ConflictError, match="another name"):
        client.submit_calibration(taken)
    (tmp_path / "runs.csv").write_text(RUNS.format(12.0, 0))
    with pytest.raises(InputError, match="measured_ms"):
        client.submit_calibration(asked)
