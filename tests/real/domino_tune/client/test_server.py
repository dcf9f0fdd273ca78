"""The client against a service in a process of its own, with a real database."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from domino_tune.base.errors import ConflictError, NotFoundError, PreconditionError, ServiceError
from domino_tune.client import Client
from domino_tune.requests import (
    CalibrateRequest,
    LayoutRequest,
    ProfilesImportRequest,
    SimulateRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.results import to_json
from domino_tune.results.tune import TuneResult
from domino_tune.store.formats.chrome_trace import trace_bytes
from domino_tune.store.plans import save_plan
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.errors import InfeasiblePlanError, InputError
from tests.real.domino_tune.client.cutting_proxy import cutting_proxy
from tests.real.domino_tune.serving import Served, served
from tests.support.processes import PATIENCE_S

WORKLOAD: dict[str, Any] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 2, "seq_length": 256, "micro_batch_size": 2,
    "overrides": ("num_hidden_layers=4",),
}  # fmt: skip
ASKED = TuneRequest(**WORKLOAD, search="random", trials=4)
LAYOUTS = LayoutRequest(
    model="gpt3-1.3b", profile="h100-dgx", seq_length=256, overrides=("num_hidden_layers=4",),
    gpus=4, global_batch_size=4, pp=1, recompute="none",
)  # fmt: skip
LONG = TuneRequest(
    model="gpt3-13b", profile="h100-dgx", tp=8, seq_length=2048, micro_batch_size=8,
    tune_also=("micro_batch_size",), search="random", trials=100_000,
)  # fmt: skip
LONG_LAYOUTS = LayoutRequest(
    model="llama3-8b", profile="h100-dgx", seq_length=4096, gpus=16, global_batch_size=256
)
RUNS = (
    "model,seq_length,tp,micro_batch_size,overrides,measured_ms\n"
    "gpt3-1.3b,512,4,4,num_hidden_layers=2,{}\ngpt3-1.3b,512,2,2,num_hidden_layers=2,{}\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.delenv("DOMINO_TUNE_TOKEN", raising=False)
    with Client(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def local() -> TuneResult:
    return tune(ASKED)


def less_seconds(result: Any) -> Any:
    plain = to_json(result)
    del plain["seconds"]
    return plain


def test_a_tune_is_what_it_is_locally(client: Client, local: TuneResult, tmp_path: Path) -> None:
    texts: list[str] = []
    job = client.result("tune", ASKED, texts.append)
    assert less_seconds(job.answer()) == less_seconds(local)
    assert texts
    save_plan(local.best.plan_file, tmp_path / "plan.json")
    assert client.file(job.id, "plan") == (tmp_path / "plan.json").read_bytes()
    assert client.file(job.id, "trace") == trace_bytes(local.best.timelines)
    assert client.file(job.id, "report").startswith(b"<!doctype html>")
    assert client.export(job.id, "env")["environment"] is not None
    assert job.id in [one.id for one in client.jobs(kind="tune").items]


def test_layouts_are_what_they_are_locally(client: Client, tmp_path: Path) -> None:
    texts: list[str] = []
    job, local = client.result("layout", LAYOUTS, texts.append), tune_layouts(LAYOUTS)
    answer = job.answer()
    assert less_seconds(answer) == less_seconds(local)
    assert str(answer.tables()[0]) == str(local.tables()[0])
    assert list(answer.to_frame()["tp"]) == [one.tp for one in local.layouts]
    assert texts
    save_plan(local.best.plan_file, tmp_path / "plan.json")
    assert client.file(job.id, "plan") == (tmp_path / "plan.json").read_bytes()
    assert client.file(job.id, "trace") == trace_bytes(local.best.timelines)
    assert client.file(job.id, "report").startswith(b"<!doctype html>")
    assert client.export(job.id, "env")["environment"] is not None
    assert job.id in [one.id for one in client.jobs(kind="layout").items]
    assert client.job(job.id).result() == client.wait(client.submit("layout", LAYOUTS)).result()
    with pytest.raises(NotFoundError):
        client.file(job.id, "points")


def test_a_simulation_replays_a_plan_file(
    client: Client, local: TuneResult, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    save_plan(local.best.plan_file, path)
    asked = SimulateRequest(plan=str(path))
    assert to_json(client.simulate(asked)) == to_json(simulate(asked))


def test_errors_are_those_of_the_verb(client: Client) -> None:
    with pytest.raises(InputError, match="num_hidden_layer"):
        client.result("tune", TuneRequest(**{**WORKLOAD, "overrides": ("num_hidden_layer=4",)}))
    large: dict[str, Any] = {
        "model": "gpt3-13b",
        "profile": "h100-dgx",
        "tp": 1,
        "seq_length": 2048,
    }
    with pytest.raises(InfeasiblePlanError, match="smallest change that fits: tp = 8") as caught:
        client.result("tune", TuneRequest(**large, micro_batch_size=4))
    assert (caught.value.reason, caught.value.change) == ("memory", {"tp": 8})
    with pytest.raises(NotFoundError):
        client.job("job_" + "0" * 32)
    with pytest.raises(InputError):
        client.simulate(SimulateRequest(**{**WORKLOAD, "tp": None}))


def test_any_kind_of_job_is_found_by_its_id(client: Client) -> None:
    made = [
        client.submit("tune", ASKED), client.submit("layout", LAYOUTS),
        client.submit("whatif", WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=1x,2x")),
    ]  # fmt: skip
    assert [client.job(job.id).kind for job in made] == ["tune", "layout", "whatif"]
    for job in made:
        client.wait(client.stop(job.id))


def test_lost_connections_make_no_second_job_and_end_no_wait(server: Served) -> None:
    with Client(server.url) as client:
        before = {job.id for job in client.jobs(kind="tune").items}
    with cutting_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.cuts = 2
        job = client.submit("tune", ASKED)
        assert proxy.cut == 2
        after = {job.id for job in client.jobs(kind="tune").items}
        assert after - before == {job.id}
        proxy.cuts = 3
        assert client.wait(job).state == "done"


def test_a_restart_goes_unnoticed(tmp_path: Path) -> None:
    with served(tmp_path) as running, cutting_proxy(running.url) as proxy:
        with Client(running.url) as client:
            job = client.submit("tune", ASKED)
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(timeout=PATIENCE_S)
        with ThreadPoolExecutor() as threads, Client(proxy.url) as client:
            found = threads.submit(client.wait, job)
            with served(tmp_path) as again:
                proxy.leads_to(again.url)
                assert found.result(PATIENCE_S).state == "done"


def test_a_job_that_another_deletes_is_not_found(server: Served, client: Client) -> None:
    job = client.submit("tune", LONG)
    with Client(server.url) as other, pytest.raises(NotFoundError):
        client.wait(job, lambda text: _delete(other, job.id))


def test_nobody_there() -> None:
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(ServiceError, match="cannot be reached"),
    ):
        client.models()


def test_a_sweep_is_the_frame_of_the_verb(client: Client) -> None:
    asked = WhatIfRequest(**WORKLOAD, change=("link_bandwidth=2x",))
    assert to_json(client.whatif(asked)) == to_json(whatif(asked))
    sweep = WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=0.5x,2x")
    job, local = client.result("whatif", sweep), whatif(sweep)
    assert job.result() == json.loads(json.dumps(to_json(local)))
    assert [one["index"] for one in json.loads(client.file(job.id, "points"))["items"]] == [0, 1]
    there, here = job.answer().to_frame(), local.to_frame()
    assert list(there.columns) == list(here.columns)
    assert there["link_bandwidth"].tolist() == ["", "0.5x", "2x"]
    assert there["iteration_ms"].tolist() == pytest.approx(here["iteration_ms"].tolist(), abs=1e-6)


def test_lists_of_jobs_are_filtered_and_framed(client: Client) -> None:
    done = client.wait(client.submit("tune", ASKED))
    page = client.jobs(kind="tune", state="done", model="gpt3-1.3b", limit=5)
    found = page.to_frame().set_index("id").loc[done.id]
    assert (found["state"], found["model"], found["tp"]) == ("done", "gpt3-1.3b", 2)
    assert found["iteration_ms"] > 0
    assert client.jobs(kind="tune", model="gpt3-2.7b").items == ()
    assert list(client.jobs(kind="tune", model="gpt3-2.7b").to_frame().columns) == []
    with pytest.raises(InputError, match="state"):
        client.jobs(kind="tune", state="odd")


def test_profiles_and_models(client: Client) -> None:
    profiles = client.profiles(limit=2)
    frame = profiles.to_frame()
    assert frame["name"].tolist() == [one["name"] for one in profiles["items"]]
    assert set(profiles["items"][0]["sections"]) <= set(frame.columns)
    body, tag = client.get_profile("h100-dgx")
    assert json.loads(body)["name"] == "h100-dgx"
    assert tag
    config = {
        "model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 1000,
        "n_positions": 512,
    }  # fmt: skip
    client.add_model("tiny", json.dumps(config).encode())
    models = client.models().to_frame().set_index("name")
    assert models.loc[["llama2-7b", "tiny"], "hidden_size"].tolist() == [4096, 256]
    asked = SimulateRequest(**{**WORKLOAD, "model": "tiny"})
    assert client.simulate(asked).model.hidden_size == 256


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
            client.import_profile(ProfilesImportRequest(**{**fields, **wrong}))


def test_a_calibration_is_kept_and_told(client: Client, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(RUNS.format(12.0, 11.0))
    asked = CalibrateRequest(profile="h100-dgx", runs=str(tmp_path / "runs.csv"), name="fitted")
    texts: list[str] = []
    job = client.result("calibrate", asked, texts.append)
    answer = job.answer()
    assert answer.path is None
    assert "Kept as fitted." in str(answer)
    assert list(answer.to_frame()["measured_ms"]) == [12.0, 11.0]
    assert texts[-1].startswith("done")
    assert all(texts)
    assert client.job(job.id).kind == "calibrate"
    assert job.id in [one.id for one in client.jobs(kind="calibrate", state="done").items]
    assert client.get_profile("fitted")[0]
    taken = CalibrateRequest(profile="h100-dgx", runs=asked.runs, name="a100-sxm")
    with pytest.raises(ConflictError, match="another name"):
        client.submit("calibrate", taken)
    (tmp_path / "runs.csv").write_text(RUNS.format(12.0, 0))
    with pytest.raises(InputError, match="measured_ms"):
        client.submit("calibrate", asked)


def _delete(client: Client, name: str) -> None:
    with suppress(NotFoundError):
        client.delete(name)
