"""Whole answers: ETags and 304, HEAD, gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest

from api.app import route_table
from api.middleware import LEAST_BYTES, has
from tests.support.asked import CELL, SMALL, described, ended, job
from tests.support.service import serving

PLAIN = {"Accept-Encoding": "identity"}
ZIPPED = {"Accept-Encoding": "br;q=1, gzip;q=0.5"}
PATHS = (
    "/", "/docs", "/static/problems.html", "/static/app.js", "/static/app.css", "/openapi.json",
    "/v1/jobs?state=failed", "/v1/models", "/v1/profiles", "/v1/profiles/h100-dgx",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("whole")) as service, service.client() as made:
        yield made


@pytest.fixture(scope="module")
def tune(client: httpx.Client) -> str:
    """The path of a tune that is done."""
    made = client.post("/v1/jobs", json=job(SMALL), headers={"Prefer": "wait=30"})
    found = ended(client, made.json()["links"]["self"])
    return str(found["links"]["self"])


def raw(client: httpx.Client, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    """An answer, and its body as it was sent."""
    with client.stream("GET", path, headers=headers) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize("path", [*PATHS, "TUNE", "TUNE/files/plan", "TUNE/files/report"])
def test_what_has_not_changed_is_not_sent_again(client: httpx.Client, tune: str, path: str) -> None:
    path = path.replace("TUNE", tune)
    whole, body = raw(client, path, **PLAIN)
    assert whole.status_code == 200
    assert whole.headers["cache-control"].endswith("no-cache")
    tag = whole.headers["etag"]
    for known in (tag, f'"other", {tag}', "*"):
        again, nothing = raw(client, path, **{**PLAIN, "If-None-Match": known})
        assert (again.status_code, nothing) == (304, b"")
        assert again.headers["etag"] == tag
    assert raw(client, path, **{**PLAIN, "If-None-Match": '"other"'})[1] == body


@pytest.mark.parametrize("path", [*PATHS, "TUNE", "TUNE/files/report"])
def test_large_answers_are_compressed_for_who_takes_it(
    client: httpx.Client, tune: str, path: str
) -> None:
    path = path.replace("TUNE", tune)
    whole, body = raw(client, path, **PLAIN)
    packed, sent = raw(client, path, **ZIPPED)
    for answer, size in ((whole, len(body)), (packed, len(sent))):
        assert answer.headers["vary"] == "Accept-Encoding"
        assert int(answer.headers["content-length"]) == size
    if len(body) < LEAST_BYTES:
        assert "content-encoding" not in packed.headers
        return
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(sent) == body
    assert len(sent) < len(body)
    for refused in ("gzip;q=0", "deflate", ""):
        assert raw(client, path, **{"Accept-Encoding": refused})[1] == body


def test_strong_tags_tell_forms_apart_and_either_replaces(client: httpx.Client) -> None:
    profile = client.get("/v1/profiles/h100-dgx", headers=PLAIN)
    packed, _ = raw(client, "/v1/profiles/h100-dgx", **ZIPPED)
    assert packed.headers["etag"] == profile.headers["etag"][:-1] + ';gzip"'
    table = "m,n,k,us\n4096,12288,4096,650\n"
    query = "format=gemm-csv&into=h100-dgx"
    path = "/v1/profiles/mine/import"
    made = client.post(f"{path}?{query}", content=table, headers={"Content-Type": "text/csv"})
    assert made.status_code == 201
    kept, _ = raw(client, "/v1/profiles/mine", **ZIPPED)
    assert kept.headers["etag"].endswith(';gzip"')
    headers = {"If-Match": kept.headers["etag"]}
    assert client.delete("/v1/profiles/mine", headers=headers).status_code == 204


def test_every_get_answers_head_with_the_same_headers(client: httpx.Client, tune: str) -> None:
    own = ("date", "x-request-id", "content-length", "etag")
    for route in route_table():
        if route.method != "GET":
            continue
        path = route.path
        path = path.replace("/v1/jobs/{job_id}", tune).replace("files/{name}", "files/plan")
        path = path.replace("{name}", "docs.js")
        head = client.head(path)
        with client.stream("GET", path) as get:
            assert head.status_code == get.status_code, path
            told = [
                {name: value for name, value in one.headers.items() if name not in own}
                for one in (head, get)
            ]
        told[1].pop("transfer-encoding", None)
        told[1].pop("x-accel-buffering", None)
        told[0].pop("transfer-encoding", None)
        assert told[0] == told[1], path
        assert not head.content


def test_answers_that_change_nothing_say_nothing_of_caches(client: httpx.Client) -> None:
    made = client.post("/v1/simulations", json=CELL)
    assert made.status_code == 200, made.text
    described(made)
    assert made.headers["cache-control"] == "no-store"
    assert "etag" not in made.headers
    refused = client.get("/v1/jobs/job_" + "0" * 32)
    assert refused.status_code == 404
    assert "etag" not in refused.headers
    assert json.loads(refused.content)["type"].endswith("#not-found")


@pytest.mark.parametrize(
    ("given", "tag", "known"),
    [
        ([], '"a"', False), (['"a"'], '"a"', True), (['W/"a"'], '"a"', True),
        (['"b"', ' "c", W/"a"'], 'W/"a"', True), (["*"], '"a"', True), (['"ab"'], '"a"', False),
        (["nonsense"], '"a"', False),
    ],
)  # fmt: skip
def test_conditions(given: list[str], tag: str, known: bool) -> None:
    assert has(given, tag) is known
