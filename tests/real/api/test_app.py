"""The application as a whole, in real processes: headers, readiness, metrics, log, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from api.app import create_app, route_table
from api.observe import SAFE_HEADERS, Observe
from api.settings import Settings
from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from tests.support.postgres import running_postgres
from tests.support.service import Service, serving

TUNE = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 512, "micro_batch_size": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("app")) as made:
        yield made


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/v1/tunes", "/nowhere"])
def test_every_answer_has_safe_headers(service: Service, path: str) -> None:
    with service.client() as client:
        answer = client.get(path)
    for name in SAFE_HEADERS:
        assert name in answer.headers
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
    assert "server" not in answer.headers


def test_problems_name_the_place(service: Service) -> None:
    with service.client() as client:
        answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == "/nowhere"


def test_allow_lists_all_methods_of_a_path(service: Service) -> None:
    with service.client() as client:
        answer = client.request("PATCH", "/v1/tunes")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD, POST"


def test_the_document_is_served_and_of_3_1(service: Service) -> None:
    with service.client() as client:
        document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    operations = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert operations == {route.name for route in route_table()}


def test_metrics_count_by_route_and_never_by_path(service: Service) -> None:
    with service.client() as client:
        for number in range(3):
            client.get(f"/v1/profiles/not-there-{number}")
            client.get(f"/somewhere/{number}")
        text = client.get("/metrics").text
    counted = re.findall(r"^http_requests_total\{(.*)\} (.*)$", text, re.MULTILINE)
    assert ('method="GET",route="/v1/profiles/{name}",status="404"', "3.0") in counted
    assert "unmatched" in text
    assert "not-there" not in text
    assert 'domino_tune_jobs{state="queued"}' in text
    assert "process_resident_memory_bytes" in text


def test_a_bug_is_told_without_its_data(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @app.get("/bug")
    async def bug(request: Request) -> None:
        raise RuntimeError(f"secret {request.headers['authorization']}")

    class Silent:
        def began(self) -> None: ...

        def ended(self, method: str, route: str, status: int, seconds: float) -> None: ...

    app.add_middleware(Observe, counts=Silent(), route_of=lambda scope: "bug")
    with caplog.at_level(logging.INFO, "domino_tune"):
        answer = asyncio.run(_get(app, "/bug", {"Authorization": "dt_hidden"}))
    assert answer.status_code == 500
    plain = answer.json()
    assert plain["title"] == "Internal Server Error"
    assert answer.headers["x-request-id"] in plain["detail"]
    assert "RuntimeError" in caplog.text
    for told in (answer.text, caplog.text):
        assert "hidden" not in told


async def _get(app: FastAPI, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path, headers=headers)


# Starting and stopping --------------------------------------------------------------------------


def test_it_does_not_start_on_a_database_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"This is no database at all." * 100)
    with pytest.raises(AssertionError, match="did not start") as caught, serving(tmp_path):
        pass
    assert "is no SQLite database" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_ready_goes_503_before_it_stops(tmp_path: Path) -> None:
    with serving(tmp_path, notice_s=2, workers=0) as service:
        seen: list[int] = []

        def look() -> None:
            with service.client() as client, contextlib.suppress(httpx.TransportError):
                while True:
                    seen.append(client.get("/readyz").status_code)
                    time.sleep(0.05)

        watching = threading.Thread(target=look)
        watching.start()
        while not seen:
            time.sleep(0.05)
        service.process.send_signal(signal.SIGTERM)
        watching.join(20)
        service.process.wait(20)
    assert seen[0] == 200
    assert seen[-1] == 503
    assert set(seen) == {200, 503}


def test_a_running_job_is_given_back(tmp_path: Path) -> None:
    with serving(tmp_path, workers=1) as service:
        with service.client() as client:
            made = client.post(
                "/v1/tunes", json={**TUNE, "model": "gpt3-13b", "tp": 8, "micro_batch_size": 16}
            )
            assert made.status_code == 202, made.text
            place = made.headers["location"]
            while client.get(place).json()["state"] == "queued":
                time.sleep(0.05)
            assert client.get(place).json()["state"] == "running"
        service.stop()
    with serving(tmp_path, workers=0) as service, service.client() as client:
        assert client.get(place).json()["state"] == "queued"


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    with serving(tmp_path, workers=0, most_queued=2) as service, service.client() as client:
        keyed = {"Idempotency-Key": "first"}
        first = client.post("/v1/tunes", json=TUNE, headers=keyed)
        second = client.post("/v1/sweeps", json={**TUNE, "sweep": "link_bandwidth=1x,2x"})
        assert [first.status_code, second.status_code] == [202, 202]
        third = client.post("/v1/tunes", json=TUNE)
        assert third.status_code == 429
        assert int(third.headers["retry-after"]) > 0
        again = client.post("/v1/tunes", json=TUNE, headers=keyed)
        assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
        client.post(first.headers["location"] + "/cancel")
        assert client.post("/v1/tunes", json=TUNE).status_code == 202


def test_the_rate_is_bounded(tmp_path: Path) -> None:
    with (
        serving(tmp_path, workers=0, rate_per_s=0.01, burst=3) as service,
        service.client() as client,
    ):
        statuses = [client.get("/v1/tunes").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert client.get("/healthz").status_code == 200


def test_guessing_tokens_is_bounded(tmp_path: Path) -> None:
    given: dict[str, Any] = {"tokens_required": True, "rate_per_s": 0.01, "burst": 4}
    with serving(tmp_path, workers=0, **given) as service, service.client() as client:
        database = open_database(service.settings.database_url)
        desk = TokenDesk(database)
        secret = desk.add("one", "ann", "read")

        def ask(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return client.get("/v1/tunes", headers=headers).status_code

        assert ask(secret) == 200
        wrong = ["dt_" + str(number) * 43 for number in range(5)]
        assert [ask(token) for token in wrong] == [401, 401, 401, 401, 429]
        assert ask(secret) == 200
        assert ask(desk.add("new", "ann", "read")) == 200  # nobody saw it before
        desk.revoke("one")
        assert ask(secret) == 429
        database.close()


def test_a_database_that_goes_away_is_503(tmp_path: Path) -> None:
    with (
        running_postgres() as server,
        serving(tmp_path, database_url=server.url(), workers=0) as service,
        service.client() as client,
    ):
        assert client.get("/readyz").status_code == 200
        server.stop()
        for path in ("/readyz", "/v1/tunes"):
            answer = client.get(path)
            assert answer.status_code == 503
            assert "retry-after" in answer.headers
            assert answer.headers["content-type"] == "application/problem+json"
        assert client.get("/healthz").status_code == 200
        told = client.get("/metrics")
        assert told.status_code == 200
        assert "process_resident_memory_bytes" in told.text
        assert "domino_tune_jobs{" not in told.text
        assert "/v1/tunes: The database does not answer" in (log := service.log.read_text())
        assert "[OperationalError: " in log
        server.start()
        assert client.get("/v1/tunes").status_code == 200


def test_settings_decide_which_names_it_answers_to() -> None:
    local = Settings(database_url="sqlite:///x.db")
    assert create_app(local).state.declared
    assert json.loads(local.to_json())["bind"] == "127.0.0.1"
