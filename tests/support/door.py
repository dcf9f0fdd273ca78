"""The table of requests that are refused or odd, each with the answer that it must get."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.support.asked import CELL, SMALL, job

JSON: Final = {"Content-Type": "application/json"}
TEXT: Final = {"Content-Type": "text/csv"}
DEEP: Final = b'{"model":' + b"[" * 40 + b"]" * 40 + b"}"
NOBODY: Final = "/v1/jobs/job_" + "0" * 32


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, its status, and where the answer points, or a word of it."""

    method: str = "POST"
    path: str = "/v1/jobs"
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    status: int = 422
    place: str = ""
    says: str = ""

    def ask(self, client: httpx.Client) -> httpx.Response:
        """Send it."""
        return client.request(self.method, self.path, content=self.body, headers=self.headers)


def body(**given: Any) -> bytes:
    """A tune's body with other fields."""
    return json.dumps({**job(SMALL), **given}).encode()


def _bad(place: str, **given: Any) -> Case:
    return Case(body=body(**given), place=place)


def _asked(plain: dict[str, Any], status: int = 422, **more: Any) -> Case:
    return Case(body=json.dumps(plain).encode(), status=status, **more)


def _kept(path: str, content: bytes, status: int = 422, **more: Any) -> Case:
    headers = more.pop("headers", JSON)
    return Case(path=path, body=content, headers=headers, status=status, **more)


SIMULATED: Final = {**CELL, "row_slices": 2}
CASES: Final[dict[str, Case]] = {
    # What is no JSON, or too much of it
    "no body": Case(body=b"", status=400, says="empty"),
    "no JSON": Case(body=b'{"kind": tune}', status=400, says="no JSON"),
    "no UTF-8": Case(body=b'{"kind": "\xff"}', status=400, says="UTF-8"),
    "a list": Case(body=b"[]", says="object"),
    "NaN": Case(body=body()[:-1] + b', "x": NaN}', says="finite"),
    "a key twice": Case(body=body()[:-1] + b', "tp": 4}', says="twice"),
    "a long number": Case(body=body()[:-1] + b', "trials2": ' + b"9" * 50 + b"}", says="40 digits"),
    "NUL in a text": Case(body=body(model="a\0b"), says="NUL"),
    "half a surrogate": Case(body=body()[:-1] + b', "x": "\\ud800"}', says="surrogate"),
    "40 deep": Case(body=DEEP, says="32 deep"),
    "100,000 deep": Case(body=b"[" * 100_000, status=422, says="values"),
    "60,000 values": Case(body=b'{"overrides": [' + b"1," * 60_000 + b"1]}", says="values"),
    "20,000 keys": Case(body=json.dumps({f"k{n}": 1 for n in range(20_000)}).encode(), says="keys"),
    "two MiB": Case(body=b'{"model": "' + b"x" * (2 << 20) + b'"}', status=413, says="bytes"),
    "gzip": Case(body=b"{}", headers={**JSON, "Content-Encoding": "gzip"}, status=415),
    "no type": Case(body=b"{}", headers={}, status=415),
    "another charset": Case(
        body=b"{}", headers={"Content-Type": "application/json; charset=utf-16"}, status=415
    ),
    # Bodies of jobs
    "no kind": _asked(SMALL, place="#/kind"),
    "another kind": _asked(job(SMALL, "dance"), place="#/kind", says="calibrate"),
    "a kind that is no text": _asked({**SMALL, "kind": ["tune"]}, place="#/kind"),
    "an unknown field": _bad("#/tpp", tpp=1),
    "a text for a number": _bad("#/tp", tp="4"),
    "true for a number": _bad("#/tp", tp=True),
    "zero": _bad("#/tp", tp=0),
    "a huge number": _bad("#/tp", tp=10**30),
    "a path for a name": Case(
        body=body(profile="../../etc/passwd"), place="#/profile", says="small letters"
    ),
    "a file for a name": _bad("#/model", model="models/config.json"),
    "an unknown model": _bad("#/model", model="nobody-has-this"),
    "an unknown profile": _bad("#/profile", profile="nobody-has-this"),
    "an unknown override": Case(
        body=body(overrides=["no_such_field=1"]), place="#/overrides", says="no_such_field"
    ),
    "an override that divides nothing": _bad("#/overrides", overrides=["num_attention_heads=7"]),
    "a long text": _bad("#/overrides/0", overrides=["x" * 1000]),
    "many entries": _bad("#/overrides", overrides=["num_hidden_layers=4"] * 100),
    "a field of ranks": _bad("#/backend", backend="nccl"),
    "a field of layouts": _bad("#/gpus", gpus=8),
    "tp that divides nothing": Case(body=body(tp=7), place="#/tp", says="nearest"),
    "tp above the heads": Case(body=body(tp=64), place="#/tp", says="Or try overrides"),
    "pp that divides nothing": Case(body=body(pp=2, vpp=5), place="#/pp", says="pp_layers="),
    "what fits nowhere": Case(body=body(model="gpt3-175b", tp=1), says="fit"),
    "a long sequence": Case(
        body=body(seq_length=1 << 24), place="#/seq_length", says="max_position_embeddings"
    ),
    "no GPUs": _asked({"kind": "layout", "model": "gpt3-1.3b", "profile": "h100-dgx"}, place="#/"),
    "GPUs that nothing divides": _asked(
        {
            "kind": "layout", "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 512,
            "gpus": 7, "global_batch_size": 3, "tp": 2,
        },
        place="#/tp",
        says="divides",
    ),
    "one number of GPUs": _asked(
        {
            "kind": "scale", "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 512,
            "gpus": [8], "global_batch_size": 16,
        },
        says="write it like 8,16,32",
    ),
    "a sweep of nothing": _asked(job(CELL, "whatif"), says="what to change"),
    "a sweep of an odd key": _asked(job({**CELL, "sweep": "colour=1,2"}, "whatif"), says="colour"),
    "a plan that is none": _asked(
        {"kind": "whatif", "plan": {}, "sweep": "tp=1,2"}, place="#/plan"
    ),
    "a validation of nothing": _asked({"kind": "validate", "of": "job_1"}, place="#/"),
    "one run": _asked(
        {"kind": "calibrate", "profile": "h100-dgx", "name": "mine", "runs": "measured_ms\n1\n"},
        place="#/runs",
    ),
    "a calibration under its base's name": _asked(
        {
            "kind": "calibrate", "profile": "h100-dgx", "name": "h100-dgx",
            "runs": [{**CELL, "measured_ms": 100.0}] * 2,
        },
        says="profile",
    ),
    # Questions
    "a plan that cannot be": _kept(
        "/v1/simulations", json.dumps({**CELL, "row_slices": 99}).encode()
    ),
    "a what-if of nothing": _kept(
        "/v1/what-ifs", json.dumps(CELL).encode(), says="what to change"
    ),
    "a what-if that is a sweep": _kept(
        "/v1/what-ifs", json.dumps({**CELL, "sweep": "tp=1,2"}).encode(), place="#/sweep"
    ),
    # Jobs that are not there, and odd parameters
    "another's job": Case(method="GET", path=NOBODY, status=404),
    "an id that is none": Case(method="GET", path="/v1/jobs/1", place="job_id"),
    "a path in an id": Case(method="GET", path="/v1/jobs/..%2F..%2Fetc", status=404),
    "a file that is none": Case(method="GET", path=f"{NOBODY}/files/..%2Fplan", status=404),
    "an unknown query": Case(method="GET", path="/v1/jobs?colour=1", place="colour"),
    "a query twice": Case(method="GET", path="/v1/jobs?limit=1&limit=2", place="limit"),
    "a page of 10,000": Case(method="GET", path="/v1/jobs?limit=10000", place="limit"),
    "a time that is none": Case(
        method="GET", path="/v1/jobs?created_from=2026-02-31T00:00:00Z", place="created_from"
    ),
    "a label of two lines": Case(
        method="PATCH", path=NOBODY, body=b'{"label": "a\\nb"}', place="#/label"
    ),
    "an odd If-Match": Case(
        method="PATCH", path=NOBODY, body=b'{"label": null}', headers={**JSON, "If-Match": "x"},
        status=400,
    ),
    "a method that is none": Case(method="PUT", path="/v1/jobs", status=405),
    "a place that is none": Case(method="GET", path="/v1/tunes", status=404),
    # The library
    "a profile that is no JSON": Case(method="PUT", path="/v1/profiles/x", body=b"{", status=400),
    "a profile that is none": Case(method="PUT", path="/v1/profiles/x", body=b"{}"),
    "a table that is none": _kept(
        "/v1/profiles/x/import?format=gemm-csv&into=h100-dgx", b"\0\1\2", headers=TEXT
    ),
    "a table of 30,000 lines": _kept(
        "/v1/profiles/x/import?format=gemm-csv&into=h100-dgx", b"1,2\n" * 30_000, headers=TEXT,
        says="20,000 lines",
    ),
    "a model that is none": _kept("/v1/models?name=x", b"{}"),
    "a preset's name": _kept(
        "/v1/models?name=llama2-7b", json.dumps({"model_type": "gpt2", "n_layer": 4, "n_embd": 256,
        "n_head": 4, "vocab_size": 1000, "n_positions": 512}).encode(), status=409,
    ),
    # Pages of other sites
    "another site's page": Case(
        body=body(), headers={**JSON, "Origin": "http://evil.example"}, status=403
    ),
    "a host of another name": Case(
        method="GET", headers={"Host": "evil.example"}, status=403
    ),
    "two lengths": Case(
        body=b"{}", headers={**JSON, "Transfer-Encoding": "chunked", "Content-Length": "2"},
        status=400,
    ),
}  # fmt: skip


def pointed(answer: httpx.Response) -> list[str]:
    """Where a problem points."""
    return [
        str(one.get("pointer") or one.get("parameter")) for one in answer.json().get("errors", ())
    ]
