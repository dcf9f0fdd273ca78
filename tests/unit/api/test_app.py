"""The application as a whole: headers, metrics, its log, and limits of the queue."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from api.app import route_table
from api.middleware import SAFE_HEADERS, Observe
from tests.support.asked import CELL, SMALL, good, job, listed, refused
from tests.support.inside import Inside, inside


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/v1/jobs", "/nowhere"])
def test_every_answer_has_safe_headers(service: Inside, path: str) -> None:
    with service.client() as client:
        answer = client.get(path)
    for name in SAFE_HEADERS:
        assert name in answer.headers
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
    assert "server" not in answer.headers


def test_problems_name_the_place_and_what_is_allowed(service: Inside) -> None:
    with service.client() as client:
        assert client.get("/nowhere").json()["instance"] == "/nowhere"
        assert client.request("PATCH", "/v1/jobs").headers["allow"] == "GET, HEAD, POST"


def test_the_document_is_served(service: Inside) -> None:
    with service.client() as client:
        document = client.get("/openapi.json").json()
    operations = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert operations == {route.name for route in route_table()}


def test_metrics_count_by_route_and_never_by_path(service: Inside) -> None:
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

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/bug", headers={"Authorization": "dt_hidden"})

    app.add_middleware(Observe, counts=Silent(), route_of=lambda scope: "bug")
    with caplog.at_level(logging.INFO, "domino_tune"):
        answer = asyncio.run(ask())
    assert answer.status_code == 500
    plain = answer.json()
    assert plain["title"] == "Internal Server Error"
    assert answer.headers["x-request-id"] in plain["detail"]
    assert "RuntimeError" in caplog.text
    assert "hidden" not in answer.text + caplog.text


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    with inside(tmp_path, most_queued=2) as service, service.client() as client:
        keyed = {"Idempotency-Key": "first"}
        first = good(client.post("/v1/jobs", json=job(SMALL), headers=keyed), 202)
        swept = {**CELL, "sweep": "link_bandwidth=1x,2x"}
        good(client.post("/v1/jobs", json=job(swept, "whatif")), 202)
        third = client.post("/v1/jobs", json=job(SMALL))
        refused(third, 429)
        assert int(third.headers["retry-after"]) > 0
        again = good(client.post("/v1/jobs", json=job(SMALL), headers=keyed), 202)
        assert again["id"] == first["id"]
        assert client.delete(first["links"]["self"]).status_code == 204
        anew = good(client.post("/v1/jobs", json=job(SMALL), headers=keyed), 202)
        assert anew["id"] != first["id"]


@pytest.mark.parametrize(("method", "part"), [("POST", "/stop"), ("DELETE", "")])
def test_a_stop_is_heard_at_once(service: Inside, method: str, part: str) -> None:
    """The runner does not wait for its next look."""
    parts = service.app.state.parts
    with service.client() as client, patch.object(type(parts), "look") as look:
        place = good(client.post("/v1/jobs", json=job(SMALL)), 202)["links"]["self"]
        look.assert_not_called()
        assert client.request(method, f"{place}{part}").is_success
        look.assert_called_once_with()


def test_a_label_is_set_on_the_version_that_was_seen(service: Inside) -> None:
    with service.client() as client:
        place = good(client.post("/v1/jobs", json=job(SMALL)), 202)["links"]["self"]
        seen = client.get(place).headers["etag"]
        labelled = client.patch(place, json={"label": "mine"}, headers={"If-Match": seen})
        assert good(labelled)["label"] == "mine"
        assert labelled.headers["etag"] != seen
        refused(client.patch(place, json={"label": "no"}, headers={"If-Match": seen}), 412)
        assert good(client.patch(place, json={"label": None}))["label"] is None


def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    with inside(tmp_path) as service, service.client() as client:
        swept = {**CELL, "tp": 2, "sweep": "link_bandwidth=1x,2x"}
        made = [
            good(client.post("/v1/jobs", json=body), 202)["id"]
            for body in (job(SMALL), job(SMALL), job(swept, "whatif"))
        ]
        assert listed(client) == made[::-1]
        assert listed(client, kind="whatif") == made[2:]
        assert listed(client, "2", kind="tune", model=SMALL["model"], q="TP 4") == made[1::-1]
        assert listed(client, state="done") == listed(client, profile="a100-sxm") == []
        assert listed(client, created_from="2999-01-01T00:00:00Z") == []
        for query in ("kind=dance", "state=odd", "created_from=2999-13-01T00:00:00Z", "x=1"):
            refused(client.get(f"/v1/jobs?{query}"), 422)
        refused(client.get("/v1/jobs?cursor=job_1"), 422)
