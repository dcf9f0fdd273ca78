"""The authorisation matrix, made from the route table: every route × every kind of caller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import httpx
import pytest
from starlette.requests import Request

from api.app import create_app, route_table
from api.routes import jobs as routes
from api.wire import Caller, Declared, authenticate, in_thread
from domino_tune.requests.service import JobKind
from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import SCOPES, TokenDesk
from tests.support.inside import Inside, inside

ROUTES = route_table()
OPEN = frozenset({
    "/", "/docs", "/healthz", "/readyz", "/openapi.json", "/static/{name}",
})  # fmt: skip
"""The only paths that need no token."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A service that demands tokens, one of each scope, and a job of each kind of another owner."""

    service: Inside
    secrets: dict[str, str]
    jobs: dict[str, str]

    def ask(self, route: Declared, secret: str | None) -> httpx.Response:
        """Call ``route`` with a body that is none, at the other owner's job where it has one."""
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        content = None
        if route.body is not None:
            headers["Content-Type"] = route.body.media_types[0]
            content = b"{"
        with self.service.client() as client:
            return client.request(route.method, self.path(route), headers=headers, content=content)

    def path(self, route: Declared) -> str:
        """The path with all its parameters."""
        path = route.path.replace("{job_id}", self.jobs["tune"])
        return path.replace("{name}", "nobody-has-this")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("authorisation")
    url = f"sqlite:///{folder}/jobs.db"
    database = open_database(url)
    tokens, desk = TokenDesk(database), JobDesk(database)
    secrets: dict[str, str] = {
        scope: tokens.add(f"of-{scope}", f"owner-{scope}", scope) for scope in SCOPES
    }
    jobs = {
        kind: desk.submit(NewJob(kind=kind, owner="other", request={}, task=b"{}"))[0].id
        for kind in get_args(JobKind)
    }
    database.close()
    with inside(folder, tokens_required=True, burst=100_000) as service:
        yield World(service=service, secrets=secrets, jobs=jobs)


def name_of(route: Declared) -> str:
    return f"{route.method} {route.path}"


GUARDED = [route for route in ROUTES if route.scope is not None]


def test_every_route_says_its_scope_and_few_need_none() -> None:
    assert {route.path for route in ROUTES if route.scope is None} == OPEN
    assert {route.scope for route in GUARDED if route.method == "GET"} == {"read"}


def test_nothing_is_served_that_is_not_in_the_table(world: World) -> None:
    served = {
        (method, getattr(route, "path", ""))
        for route in create_app(world.service.settings).routes
        for method in getattr(route, "methods", None) or ("mounted",)
    }
    declared = {(route.method, route.path) for route in ROUTES}
    heads = {("HEAD", path) for method, path in declared if method == "GET"}
    assert served == declared | heads


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
def test_a_token_of_its_scope_is_needed(world: World, route: Declared) -> None:
    assert route.scope is not None
    answer = world.ask(route, None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"
    real = world.secrets["admin"]
    for secret in ("dt_" + "A" * 43, real[:-1], real.swapcase(), f"{real}x"):
        answer = world.ask(route, secret)
        assert answer.status_code == 401
        assert "invalid_token" in answer.headers["www-authenticate"]
        assert secret not in answer.text
    for scope in SCOPES:
        answer = world.ask(route, world.secrets[scope])
        if SCOPES.index(scope) < SCOPES.index(route.scope):
            assert answer.status_code == 403
            assert json.loads(answer.content)["detail"].startswith("This needs a token of scope")
        else:
            assert answer.status_code not in (401, 403)


@pytest.mark.parametrize("route", [one for one in GUARDED if "{job_id}" in one.path], ids=name_of)
def test_another_owners_job_is_as_one_that_is_not_there(world: World, route: Declared) -> None:
    assert route.scope is not None
    missing = replace(world, jobs=dict.fromkeys(world.jobs, "job_" + "0" * 32))
    for scope in SCOPES[SCOPES.index(route.scope) :]:
        answers = [one.ask(route, world.secrets[scope]) for one in (world, missing)]
        assert [answer.status_code for answer in answers] == [400 if route.body else 404] * 2
        told = {json.dumps(without_ids(answer.json())) for answer in answers}
        assert len(told) == 1


def without_ids(plain: Any) -> Any:
    return json.loads(re.sub("job_[0-9a-f]{32}", "job", json.dumps(plain)))


def test_lists_hold_ones_own_jobs_only(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.secrets['admin']}"}
    with world.service.client(headers=headers) as client:
        assert client.get("/v1/jobs").json()["items"] == []


def test_a_calibration_needs_admin(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.secrets['tune']}"}
    runs = [{"model": "llama2-7b", "tp": 8, "seq_length": 4096, "micro_batch_size": 4}] * 2
    body = {
        "kind": "calibrate", "profile": "h100-dgx", "name": "mine",
        "runs": [{**run, "measured_ms": 100.0} for run in runs],
    }  # fmt: skip
    with world.service.client(headers=headers) as client:
        answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 403
    assert "admin" in answer.json()["detail"]


def test_the_stream_of_a_revoked_token_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has another token, so the job goes on."""
    parts = world.service.app.state.parts
    headers = {
        name: {"Authorization": f"Bearer {parts.tokens.add(name, 'ann', 'tune')}"}
        for name in ("laptop", "desktop")
    }
    looked = []

    async def revoked(request: Request) -> Caller:
        """Look for the token again, after somebody has revoked it."""
        looked.append(request)
        await in_thread(parts.tokens.revoke, "laptop")
        return await authenticate(request)

    with world.service.client() as client:
        job = parts.jobs.submit(NewJob(kind="tune", owner="ann", request={}, task=b"{}"))[0]
        monkeypatch.setattr(routes, "TOKEN_S", -1.0)
        monkeypatch.setattr(routes, "authenticate", revoked)
        told = client.get(f"/v1/jobs/{job.id}/events", headers=headers["laptop"])
        assert (told.status_code, len(looked)) == (200, 1)
        assert "event: queued" in told.text
        assert not parts.streams
        path = f"/v1/jobs/{job.id}"
        assert client.get(path, headers=headers["laptop"]).status_code == 401
        assert client.get(path, headers=headers["desktop"]).json()["state"] == "queued"
