"""Both clients against a service in a process of its own, with a real database."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from domino_tune.base.errors import AccessError, ConflictError, NotFoundError, ServiceError
from domino_tune.client import AsyncClient, Client
from domino_tune.client.jobs import tune_answer
from domino_tune.report.ties import ties
from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest
from domino_tune.results import TuneResult, to_json
from domino_tune.store.formats.chrome_trace import trace_bytes
from domino_tune.store.plans import load_plan, save_plan
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.errors import InfeasiblePlanError, InputError
from tests.domino_tune.client.cutting_proxy import cutting_proxy
from tests.domino_tune.serving import Served, command, served
from tests.processes import PATIENCE_S

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


def warned(stderr: str) -> list[str]:
    """Return the warnings alone, without lines of progress and what was written."""
    return [line for line in stderr.splitlines() if line.startswith("warning: ")]


def test_the_command_line_asks_for_layouts(server: Served, tmp_path: Path) -> None:
    words = (
        "tune", "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--seq-length", "256",
        "--set", "num_hidden_layers=4", "--gpus", "4", "--global-batch-size", "4", "--pp", "1",
        "--recompute", "none", "--json",
    )  # fmt: skip
    plan, page, trace = (tmp_path / name for name in ("plan.json", "page.html", "trace.json"))
    files = ("--out", str(plan), "--report", str(page), "--trace", str(trace))
    here = command(tmp_path, *words)
    there = command(tmp_path, *words, *files, "--server", server.url)
    assert (there.returncode, warned(there.stderr)) == (0, warned(here.stderr))
    shown = [json.loads(one.stdout) for one in (here, there)]
    assert all(one.pop("seconds") > 0 for one in shown)
    assert shown[0] == shown[1]
    assert load_plan(str(plan)).cluster.world_size == 4
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_bytes())["traceEvents"]
    for wrong in (("--trials", "3"), ("--grad-accumulation", "2"), ("--tp", "3")):
        refused = command(tmp_path, *words, *wrong, "--server", server.url)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith("error: ")


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


def test_what_ifs_and_sweeps(client: Client) -> None:
    asked = WhatIfRequest(**WORKLOAD, change=("link_bandwidth=2x",))
    ours = json.loads(json.dumps(to_json(whatif(asked))))
    assert client.whatif(asked) == ours
    sweep = WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=0.5x,2x")
    job = client.sweep(sweep)
    assert job.result() == json.loads(json.dumps(to_json(whatif(sweep))))
    assert [one["index"] for one in client.points(job.id)["items"]] == [0, 1]
    assert job.id in [one.id for one in client.jobs(kind="sweep").items]


def test_errors_are_those_of_the_verb(client: Client) -> None:
    with pytest.raises(InputError, match="num_hidden_layer"):
        client.tune(TuneRequest(**{**WORKLOAD, "overrides": ("num_hidden_layer=4",)}))
    with pytest.raises(InfeasiblePlanError, match="GiB"):
        client.tune(TuneRequest(**{**WORKLOAD, "model": "gpt3-175b", "overrides": ()}))
    with pytest.raises(NotFoundError):
        client.job("job_" + "0" * 32)
    with pytest.raises(InputError):
        client.simulate(SimulateRequest(**{**WORKLOAD, "tp": None}))


def test_profiles_and_models(client: Client) -> None:
    names = [one["name"] for one in client.profiles()["items"]]
    assert "h100-dgx" in names
    body, tag = client.get_profile("h100-dgx")
    assert json.loads(body)["name"] == "h100-dgx"
    assert tag
    config = {
        "model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 1000,
        "n_positions": 512,
    }  # fmt: skip
    client.add_model("tiny", json.dumps(config).encode())
    assert "tiny" in [one["name"] for one in client.models()["items"]]
    assert (
        client.simulate(SimulateRequest(**{**WORKLOAD, "model": "tiny"})).model.hidden_size == 256
    )


def test_a_lost_answer_makes_no_second_job(server: Served) -> None:
    with Client(server.url) as client:
        before = {job.id for job in client.jobs(kind="tune").items}
    with cutting_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.cuts = 2
        job = client.submit_tune(ASKED)
        assert proxy.cut == 2
        after = {job.id for job in client.jobs(kind="tune").items}
        assert after - before == {job.id}


def test_a_wait_outlives_lost_connections(server: Served) -> None:
    with Client(server.url) as client:
        job = client.submit_tune(ASKED)
    with cutting_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.cuts = 3
        assert client.wait(job).state == "done"


def test_cancelled_by_another(client: Client) -> None:
    job = client.submit_tune(LONG)
    threading.Timer(0.5, client.cancel, [job]).start()
    ended = client.wait(job)
    assert ended.state == "cancelled"
    with pytest.raises(ServiceError, match="cancelled"):
        ended.result()


@pytest.mark.thorough
def test_stop_and_keep(client: Client) -> None:
    job = client.submit_tune(LONG)
    while (now := client.job(job.id)).plain["best"] is None:
        time.sleep(0.1)
    assert now.left
    assert now.elapsed_s is not None
    assert now.eta_s is not None
    assert f"at most {now.left:,} left" in now.line
    with pytest.raises(ConflictError):
        client.delete(now)
    ended = client.wait(client.finish(now))
    assert (ended.state, ended.stopped_by) == ("done", "user")
    found = tune_answer(ended, seconds=0.0).result
    assert (found.stopped_by, found.optimality) == ("user", "best_found")
    # Plans looked at since then may be lighter and as fast.
    assert ties(found.best.iteration_ms, now.plain["best"]["iteration_ms"])
    assert client.job(job.id) == ended
    client.delete(ended)
    with pytest.raises(NotFoundError):
        client.job(job.id)


def test_any_kind_of_job_is_found_by_its_id(client: Client) -> None:
    made = [
        client.submit_tune(ASKED), client.submit_layouts(LAYOUTS),
        client.submit_sweep(WhatIfRequest(**WORKLOAD, sweep="link_bandwidth=1x,2x")),
    ]  # fmt: skip
    assert [client.job(job.id).kind for job in made] == ["tune", "layout", "sweep"]
    for job in made:
        client.wait(client.finish(job))


def test_what_does_not_fit_says_what_would(client: Client) -> None:
    asked = TuneRequest(
        model="gpt3-13b", profile="h100-dgx", tp=1, seq_length=2048, micro_batch_size=4
    )
    with pytest.raises(InfeasiblePlanError, match="smallest change that fits: tp = 4") as caught:
        client.tune(asked)
    assert (caught.value.reason, caught.value.change) == ("memory", {"tp": 4})


def test_cancelled_layouts_cancel_their_job(server: Served, client: Client) -> None:
    asked = TuneRequest(
        model="llama3-8b", profile="h100-dgx", seq_length=4096, gpus=16, global_batch_size=256
    )

    async def broken_off() -> None:
        async with AsyncClient(server.url) as waiting, asyncio.timeout(1.5):
            await waiting.layouts(asked)

    with pytest.raises(TimeoutError):
        asyncio.run(broken_off())
    assert client.jobs(kind="layout").items[0].state == "cancelled"


def test_a_cancelled_task_cancels_its_job(server: Served, client: Client) -> None:
    async def broken_off() -> None:
        async with AsyncClient(server.url) as waiting:
            async with asyncio.timeout(1.5):
                await waiting.tune(LONG)

    with pytest.raises(TimeoutError):
        asyncio.run(broken_off())
    assert client.jobs(kind="tune").items[0].state == "cancelled"


def test_nobody_there() -> None:
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(ServiceError, match="cannot be reached"),
    ):
        client.models()


def test_tokens_are_wanted(tmp_path: Path) -> None:
    secret = command(tmp_path, "tokens", "add", "ci", "--scope", "read").stdout.strip()
    with served(tmp_path) as running:
        with Client(running.url) as client, pytest.raises(AccessError, match="token"):
            client.models()
        wrong = "dt_" + "x" * 43
        with Client(running.url, token=wrong) as client, pytest.raises(AccessError, match="known"):
            client.models()
        with Client(running.url, token=secret) as client:
            assert client.models()["items"]
            with pytest.raises(AccessError, match="scope"):
                client.submit_tune(ASKED)


def test_a_restart_goes_unnoticed(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        port = running.url.rpartition(":")[2]
        with Client(running.url) as client:
            job = client.submit_tune(ASKED)
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(timeout=PATIENCE_S)
            found: list[Any] = []
            waiting = threading.Thread(target=lambda: found.append(client.wait(job)))
            waiting.start()
            with served(tmp_path, "--port", port):
                waiting.join(PATIENCE_S)
    assert [one.state for one in found] == ["done"]


@pytest.mark.thorough
def test_what_was_acknowledged_is_kept_by_the_next_one(tmp_path: Path) -> None:
    """Killed right after it acknowledged `finish`: the next service ends the job, with a plan that
    is no worse than the best one that was shown."""
    with served(tmp_path) as running:
        port = running.url.rpartition(":")[2]
        with Client(running.url) as client:
            job = client.submit_tune(LONG)
            while (now := client.job(job.id)).done < 5:
                time.sleep(0.1)
            told = client.finish(now)
            running.process.kill()
            running.process.wait(timeout=PATIENCE_S)
            assert (told.state, told.stopped_by) == ("running", "user")
            with served(tmp_path, "--port", port):
                ended = client.wait(told)
    assert (ended.state, ended.stopped_by) == ("done", "user")
    assert ended.result()["best"]["iteration_ms"] <= told.plain["best"]["iteration_ms"]
