"""What is sent: one function a route, each giving a Call that both clients can make."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from domino_tune import requests
from domino_tune.client.answers import Answer
from domino_tune.client.bodies import plan_body, tune_body, whatif_body
from domino_tune.client.jobs import Job, JobPage, job_of, page_of
from domino_tune.results import Simulated
from domino_tune.results.from_json import simulated_from_json

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """A request and how its answer is read. ``again``: sending it twice does what once does."""

    method: str
    path: str
    read: Callable[[Answer], T]
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    again: bool = True


def get(path: str, read: Callable[[Answer], T], **query: object) -> Call[T]:
    """Read something; what is None in ``query`` is left out."""
    given = {key: str(value) for key, value in query.items() if value is not None}
    return Call(method="GET", path=f"{path}?{urlencode(given)}" if given else path, read=read)


def post(path: str, body: Any, read: Callable[[Answer], T], *, makes: str = "") -> Call[T]:
    """Send JSON. ``makes`` is the idempotency key of what is made; empty where nothing is."""
    data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    keyed = {"Idempotency-Key": makes} if makes else {}
    return Call(
        method="POST", path=path, read=read, body=data,
        headers={"Content-Type": "application/json", **keyed},
    )  # fmt: skip


def fresh() -> str:
    """An idempotency key of its own."""
    return uuid.uuid4().hex


def job(answer: Answer) -> Job:
    """Read a job."""
    return job_of(answer.json())


def submit_tune(request: requests.TuneRequest) -> Call[Job]:
    """Ask for a tune."""
    return post("/v1/tunes", tune_body(request), job, makes=fresh())


def submit_sweep(request: requests.WhatIfRequest) -> Call[Job]:
    """Ask for a sweep."""
    return post("/v1/sweeps", plan_body(request), job, makes=fresh())


def get_job(kind: str, name: str) -> Call[Job]:
    """A job as it is now; ``kind`` is tune or sweep."""
    return get(f"/v1/{kind}s/{segment(name)}", job)


def cancel(kind: str, name: str) -> Call[Job]:
    """End a job."""
    return Call(method="DELETE", path=f"/v1/{kind}s/{segment(name)}", read=job)


def listing(kind: str, cursor: str | None, limit: int | None) -> Call[JobPage]:
    """A page of one's own jobs."""
    return get(f"/v1/{kind}s", lambda answer: page_of(answer.json()), cursor=cursor, limit=limit)


def events(watched: Job) -> Call[None]:
    """What happens to a job, as it happens."""
    path = f"/v1/{watched.kind}s/{segment(watched.id)}/events"
    return Call(method="GET", path=path, read=Answer.check, headers={"Accept": "text/event-stream"})


def plan(name: str) -> Call[bytes]:
    """A tune's plan file."""
    return get(f"/v1/tunes/{segment(name)}/plan", Answer.content)


def export(name: str, to: str) -> Call[Json]:
    """A tune's plan for a framework."""
    return get(f"/v1/tunes/{segment(name)}/plan", Answer.json, to=to)


def report(name: str) -> Call[bytes]:
    """A tune's page."""
    return get(f"/v1/tunes/{segment(name)}/report", Answer.content)


def trace(name: str) -> Call[bytes]:
    """A tune's Chrome trace."""
    return get(f"/v1/tunes/{segment(name)}/trace", Answer.content)


def points(name: str, cursor: str | None, limit: int | None) -> Call[Json]:
    """A page of a sweep's points."""
    path = f"/v1/sweeps/{segment(name)}/points"
    return get(path, Answer.json, cursor=cursor, limit=limit)


def send_validation(name: str, body: bytes, key: str) -> Call[Json]:
    """Measured results of a tune's plan."""
    return Call(
        method="POST", path=f"/v1/tunes/{segment(name)}/validations", read=Answer.json, body=body,
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )  # fmt: skip


def validations(name: str) -> Call[Json]:
    """What was measured of a tune's plan."""
    return get(f"/v1/tunes/{segment(name)}/validations", Answer.json)


def simulate(request: requests.SimulateRequest) -> Call[Simulated]:
    """One plan, at once."""
    return post(
        "/v1/simulations", plan_body(request), lambda answer: simulated_from_json(answer.json())
    )


def whatif(request: requests.WhatIfRequest) -> Call[Json]:
    """One change, at once."""
    return post("/v1/what-ifs", whatif_body(request), Answer.json)


def profiles() -> Call[Json]:
    """The profiles that the server knows."""
    return get("/v1/profiles", Answer.json)


def get_profile(name: str) -> Call[tuple[bytes, str]]:
    """A profile's file and its ETag."""

    def read(answer: Answer) -> tuple[bytes, str]:
        return answer.content(), answer.headers.get("etag", "")

    return get(f"/v1/profiles/{segment(name)}", read)


def put_profile(name: str, body: bytes, if_match: str | None) -> Call[Json]:
    """Keep a profile; ``if_match`` is the ETag of the one it replaces, None: it is new."""
    guard = {"If-Match": if_match} if if_match else {"If-None-Match": "*"}
    return Call(
        method="PUT", path=f"/v1/profiles/{segment(name)}", read=Answer.json, body=body,
        headers={"Content-Type": "application/json", **guard}, again=False,
    )  # fmt: skip


def models() -> Call[Json]:
    """The models that the server knows."""
    return get("/v1/models", Answer.json)


def add_model(name: str, config: bytes) -> Call[Json]:
    """Keep a Hugging Face config.json under a name."""
    return Call(
        method="POST", path=f"/v1/models?{urlencode({'name': name})}", read=Answer.json,
        body=config,
        headers={"Content-Type": "application/json", "Idempotency-Key": fresh()},
    )  # fmt: skip


def segment(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")
