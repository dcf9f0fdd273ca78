"""Both clients against a service in a process of its own, with a real database."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from domino_tune.base.errors import ConflictError, NotFoundError, PreconditionError, ServiceError
from domino_tune.client import AsyncClient, Client
from domino_tune.client.jobs import Job
from domino_tune.requests import (
    CalibrateRequest,
    ProfilesImportRequest,
    SimulateRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.results.json_form import to_json
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
LAYOUTS = TuneRequest(
    model="gpt3-1.3b", profile="h100-dgx", seq_length=256, overrides=("num_hidden_layers=4",),
    gpus=4, global_batch_size=4, pp=1, recompute="none",
)  # fmt: skip
LONG = TuneRequest(
    model="gpt3-13b", profile="h100-dgx", tp=8, seq_length=2048, micro_batch_size=8,
    tune_also=("micro_batch_size",), search="bayes", trials=400,
)  # fmt: skip
LONG_LAYOUTS = TuneRequest(
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
    answer = client.tune(ASKED, texts.append)
    assert less_seconds(answer.result) == less_seconds(local)
    assert texts
    save_plan(local.best.plan_file, tmp_path / "plan.json")
    assert client.plan(answer.id) == (tmp_path / "plan.json").read_bytes()
    assert client.trace(answer.id) == trace_bytes(local.best.timelines)
    assert client.report(answer.id).startswith(b"<!doctype html>")
    assert client.export(answer.id, "env")["environment"] is not None
    assert answer.id in [job.id for job in client.jobs(kind="tune").items]


def test_layouts_are_what_they_are_locally(client: Client, tmp_path: Path) -> None:
    texts: list[str] = []
    answer, local = client.layouts(LAYOUTS, texts.append), tune_layouts(LAYOUTS)
    assert less_seconds(answer.result) == less_seconds(local)
    assert str(answer.result.tables()[0]) == str(local.tables()[0])
    assert list(answer.result.to_frame()["tp"]) == [one.tp for one in local.layouts]
    assert texts
    save_plan(local.best.plan_file, tmp_path / "plan.json")
    assert client.plan(answer.id, "layout") == (tmp_path / "plan.json").read_bytes()
    assert client.trace(answer.id, "layout") == trace_bytes(local.best.timelines)
    assert client.report(answer.id, "layout").startswith(b"<!doctype html>")
    assert client.export(answer.id, "env", "layout")["environment"] is not None
    assert answer.id in [job.id for job in client.jobs(kind="layout").items]
    assert client.job(answer.id).result() == client.wait(client.submit_layouts(LAYOUTS)).result()
    with pytest.raises(NotFoundError):
        client.plan(answer.id)


def test_asyncio_gets_the_same(server: Served, local: TuneResult) -> None:
    async def both() -> Any:
        async with AsyncClient(server.url) as client:
            tuned, simulated = await asyncio.gather(
                client.tune(ASKED), client.simulate(SimulateRequest(**WORKLOAD))
            )
            with pytest.raises(NotFoundError):
                await client.job("job_" + "0" * 32)
            return tuned.result, simulated

    tuned, simulated = asyncio.run(both())
    assert less_seconds(tuned) == less_seconds(local)
    assert to_json(simulated) == to_json(simulate(SimulateRequest(**WORKLOAD)))


def test_a_simulation_replays_a_plan_file(
    client: Client, local: TuneResult, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    save_plan(local.best.plan_file, path)
    asked = SimulateRequest(plan=str(path))
    assert to_json(client.simulate(asked)) == to_json(simulate(asked))


def test_errors_are_those_of_the_verb(client: Client) -> None:
    with pytest.raises(InputError, match="num_hidden_layer"):
        client.tune(TuneRequest(**{**WORKLOAD, "overrides": ("num_hidden_layer=4",)}))
    large: dict[str, Any] = {
        "model": "gpt3-13b",
        "profile": "h100-dgx",
        "tp": 1,
        "seq_length": 2048,
    }
    with pytest.raises(InfeasiblePlanError, match="smallest change that fits: tp = 8") as caught:
        client.tune(TuneRequest(**large, micro_batch_size=4))
    assert (caught.value.reason, caught.value.change) == ("memory", {"tp": 8})
    with pytest.raises(NotFoundError):
        client.job("job_" + "0" * 32)
    with pytest.raises(InputError):
        client.simulate(SimulateRequest(**{**WORKLOAD, "tp": None}))


def test_any_kind_of_job_is_found_by_its_id(client: Client) -> None:
    made = [
        client.submit_tune(ASKED), client.submit_layouts(LAYOUTS),
        client.submit_sweep(WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=1x,2x")),
    ]  # fmt: skip
    assert [client.job(job.id).kind for job in made] == ["tune", "layout", "sweep"]
    for job in made:
        client.wait(client.finish(job))


def test_lost_connections_make_no_second_job_and_end_no_wait(server: Served) -> None:
    with Client(server.url) as client:
        before = {job.id for job in client.jobs(kind="tune").items}
    with cutting_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.cuts = 2
        job = client.submit_tune(ASKED)
        assert proxy.cut == 2
        after = {job.id for job in client.jobs(kind="tune").items}
        assert after - before == {job.id}
        proxy.cuts = 3
        assert client.wait(job).state == "done"


def test_a_restart_goes_unnoticed(tmp_path: Path) -> None:
    with served(tmp_path) as running, cutting_proxy(running.url) as proxy:
        with Client(running.url) as client:
            job = client.submit_tune(ASKED)
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(timeout=PATIENCE_S)
        with ThreadPoolExecutor() as threads, Client(proxy.url) as client:
            found = threads.submit(client.wait, job)
            with served(tmp_path) as again:
                proxy.leads_to(again.url)
                assert found.result(PATIENCE_S).state == "done"


def test_cancelled_by_another(server: Served, client: Client) -> None:
    job = client.submit_tune(LONG)
    with Client(server.url) as other:

        def call_off(text: str) -> None:
            other.cancel(job)

        ended = client.wait(job, call_off)
    assert ended.state == "cancelled"
    with pytest.raises(ServiceError, match="cancelled"):
        ended.result()


@pytest.mark.parametrize(("kind", "asked"), [("tune", LONG), ("layout", LONG_LAYOUTS)])
def test_a_cancelled_task_cancels_its_job(
    server: Served, client: Client, kind: str, asked: TuneRequest
) -> None:
    def newest() -> Job | None:
        return next(iter(client.jobs(kind=kind).items), None)

    async def broken_off() -> None:
        before = newest()
        async with AsyncClient(server.url) as waiting:
            call = waiting.tune if kind == "tune" else waiting.layouts
            task = asyncio.create_task(call(asked))
            while (now := newest()) is None or (before and now.id == before.id):
                await asyncio.sleep(0.01)
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(broken_off())
    job = newest()
    assert job
    assert job.state == "cancelled"


def test_nobody_there() -> None:
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(ServiceError, match="cannot be reached"),
    ):
        client.models()


def test_a_sweep_is_the_frame_of_the_verb(client: Client) -> None:
    asked = WhatIfRequest(**WORKLOAD, change=("link_bandwidth=2x",))
    assert client.whatif(asked) == json.loads(json.dumps(to_json(whatif(asked))))
    sweep = WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=0.5x,2x")
    job, local = client.sweep(sweep), whatif(sweep)
    assert job.result() == json.loads(json.dumps(to_json(local)))
    assert [one["index"] for one in client.points(job.id)["items"]] == [0, 1]
    there, here = job.to_frame(), local.to_frame()
    assert list(there.columns) == list(here.columns)
    assert there["link_bandwidth"].tolist() == ["", "0.5x", "2x"]
    assert there["iteration_ms"].tolist() == pytest.approx(here["iteration_ms"].tolist(), abs=1e-6)


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
