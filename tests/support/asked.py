"""What tests ask of a service, and whether it answers as its description says."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx
from jsonschema import Draft202012Validator

from domino_tune.requests import SimulateRequest, TuneRequest
from tests.support.frozen import document
from tests.support.processes import PATIENCE_S

CELL: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 512,
    "micro_batch_size": 4,
}  # fmt: skip
SMALL: Final = {**CELL, "search": "random", "trials": 4}
"""A tune of a second."""
LONG: Final = {**CELL, "micro_batch_size": 16, "search": "random", "trials": 100_000}
"""A tune of many minutes."""
LAYOUTS: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 512, "gpus": 4,
    "global_batch_size": 4, "overrides": ["num_hidden_layers=4"],
}  # fmt: skip
"""A search of layouts of a few seconds."""


def job(body: Mapping[str, Any], kind: str = "tune") -> dict[str, Any]:
    """The body that asks for a job."""
    return {"kind": kind, **body}


TUNE: Final = TuneRequest(**SMALL)
SIMULATION: Final = SimulateRequest(**CELL)


def good(response: httpx.Response, status: int = 200) -> Any:
    """Its JSON; it has this status and is as the description says."""
    assert response.status_code == status, response.text[:1000]
    described(response)
    return response.json() if response.content else None


def refused(response: httpx.Response, status: int) -> Any:
    """Its problem."""
    assert response.headers["content-type"] == "application/problem+json", response.text[:300]
    return good(response, status)


def described(response: httpx.Response) -> None:
    """Its status and body are among those that the description has for the operation."""
    request = response.request
    told = operation(request.method.lower(), request.url.path)["responses"]
    assert str(response.status_code) in told, (request.method, request.url.path)
    content = told[str(response.status_code)].get("content", {})
    kind = response.headers.get("content-type", "").partition(";")[0]
    assert {kind, "*/*"} & set(content) or not response.content
    if kind.endswith("json"):
        fits(response.json(), content[kind]["schema"])


def fits(plain: Any, schema: dict[str, Any]) -> None:
    """JSON is as a schema of the description says."""
    whole = {**schema, "components": document()["components"]}
    Draft202012Validator(whole).validate(plain)


def operation(method: str, path: str) -> dict[str, Any]:
    """What the description says of a method of a path."""
    for template, operations in document()["paths"].items():
        if method in operations and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path):
            found: dict[str, Any] = operations[method]
            return found
    raise AssertionError(f"{method} {path} is not described")


def ended(client: httpx.Client, path: str) -> Any:
    """The job at ``path`` when it has ended."""
    end = time.monotonic() + PATIENCE_S
    while (job := good(client.get(path)))["state"] in ("queued", "running"):
        assert time.monotonic() < end, job
        time.sleep(0.1)
    return job


def listed(client: httpx.Client, limit: str = "1", **wanted: str) -> list[str]:
    """Ids of all jobs that are wanted, over pages."""
    found: list[str] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        cursor = {"cursor": page["next"]} if page["next"] else {}
        page = good(client.get("/v1/jobs", params={"limit": limit, **cursor, **wanted}))
        found += [one["id"] for one in page["items"]]
        assert all("result" not in one for one in page["items"])
    return found
