"""The client's parts that need no server: URLs, tokens, bodies, answers, events."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import httpx
import pytest

from domino_tune.base.errors import (
    MEANINGS,
    AccessError,
    NotFoundError,
    ServiceError,
    StorageError,
    meaning_of,
)
from domino_tune.client import Client
from domino_tune.client import client as module
from domino_tune.client.client import job_body, plan_body, whatif_body
from domino_tune.client.jobs import job_of
from domino_tune.client.transport import (
    EventReader,
    SecretToken,
    base_url,
    check,
    error_of,
    find_token,
    is_loopback,
    job_at,
    json_of,
    retry_after_s,
)
from domino_tune.requests import LayoutRequest, SimulateRequest, TuneRequest, WhatIfRequest
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

SECRET = "dt_" + "s3cr3t" * 7 + "x"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://tuner.example/domino/", "https://tuner.example/domino"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_a_servers_url(given: str, taken: str) -> None:
    assert base_url(given) == taken


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "",
        "http://host:port",
        "http://h?a=1",
        "http://h#a",
    ],
)
def test_another_url_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        base_url(given)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="token") as caught:
        Client(f"http://user:{SECRET}@host")
    assert SECRET not in str(caught.value)


def test_what_stays_on_this_machine() -> None:
    assert is_loopback("http://127.0.0.1:1")
    assert is_loopback("http://localhost:1")
    assert is_loopback("http://[::1]:1")
    assert not is_loopback("http://192.0.2.1:1")
    assert not is_loopback("http://localhost.example:1")


def test_where_results_go() -> None:
    url = "http://h:1/base/v1/jobs/job_0a"
    assert job_at(url) == ("http://h:1/base", "job_0a")
    for bad in ("http://h:1", "http://h/v1/jobs/..", "http://h/v1/jobs/a/files"):
        with pytest.raises(InputError, match="/v1/jobs/ID"):
            job_at(bad)


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOMINO_TUNE_TOKEN", raising=False)
    assert find_token() is None
    monkeypatch.setenv("DOMINO_TUNE_TOKEN", "dt_environment")
    from_environment = find_token()
    assert from_environment
    assert from_environment.header() == "Bearer dt_environment"
    (tmp_path / "token").write_text("dt_file\n")
    from_file = find_token(str(tmp_path / "token"))
    assert from_file
    assert from_file.header() == "Bearer dt_file"
    with pytest.raises(InputError, match="cannot be read"):
        find_token(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "bad", [f"{SECRET} {SECRET}", f"{SECRET}\nX: y", "", "ü" + SECRET, "x" * 300]
)
def test_what_cannot_be_a_token_is_not_shown(tmp_path: Path, bad: str) -> None:
    (tmp_path / "token").write_text(bad)
    with pytest.raises(AccessError) as caught:
        find_token(str(tmp_path / "token"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "x" * 50 not in shown
    assert SECRET not in shown


def test_a_token_shows_nowhere(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    caplog.set_level("DEBUG")
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
    monkeypatch.setattr(module, "sleep", lambda pause_s: None)
    with Client("http://127.0.0.1:9", token=SECRET) as client:
        held = [repr(client), repr(vars(client)), repr(vars(client._http))]
        with pytest.raises(ServiceError) as caught:
            client.models()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert SECRET not in "".join(
        [*held, *shown.format(), caplog.text, repr(SecretToken(SECRET, "it"))]
    )


def test_bodies_hold_what_was_given() -> None:
    asked = TuneRequest(
        model="gpt-2.7b", profile="h100-dgx", tp=8, seq_length=1024, micro_batch_size=4,
        overrides=("num_hidden_layers=4",), tune_also=("micro_batch_size",),
    )  # fmt: skip
    assert json.loads(job_body("tune", asked)) == {
        "kind": "tune",
        "model": "gpt-2.7b", "profile": "h100-dgx", "tp": 8, "seq_length": 1024,
        "micro_batch_size": 4, "overrides": ["num_hidden_layers=4"],
        "tune_also": ["micro_batch_size"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"model": "models/config.json"}, "--model 'models/config.json' is a file"),
        ({"profile": "mine.json"}, "--profile 'mine.json' is a file"),
    ],
)
def test_what_a_server_cannot_do_is_refused_here(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(InputError, match=flag):
        job_body("tune", TuneRequest(**options))


def test_bodies_of_layouts() -> None:
    asked = LayoutRequest(model="gpt-2.7b", gpus=8, global_batch_size=64, pp=2)
    plain = {"kind": "layout", "model": "gpt-2.7b", "gpus": 8, "global_batch_size": 64, "pp": 2}
    assert json.loads(job_body("layout", asked)) == plain
    with pytest.raises(InputError, match="A tune asks a TuneRequest, got a LayoutRequest"):
        job_body("tune", asked)


def test_a_slow_what_if_is_a_sweep() -> None:
    with pytest.raises(InputError, match="ask for a job of kind `whatif`"):
        whatif_body(WhatIfRequest(sweep="tp=2,4"))
    assert (
        job_body("whatif", WhatIfRequest(sweep="tp=2,4")) == b'{"kind":"whatif","sweep":"tp=2,4"}'
    )
    with pytest.raises(InputError, match="asks a TuneRequest"):
        job_body("tune", WhatIfRequest())
    with pytest.raises(InputError, match="calibrate"):
        job_body("dance", TuneRequest())


def test_a_bad_plan_file_stays_here(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DominoTuneError, match="Plan file"):
        plan_body(SimulateRequest(plan=str(tmp_path / "plan.json")))


def answer(status: int, body: Any = None, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.Response(status, headers=named, content=content)


def error_in(response: httpx.Response) -> DominoTuneError:
    with pytest.raises(DominoTuneError) as caught:
        check(response)
    return caught.value


PROBLEM = "application/problem+json"
KINDS = [kind for kind in MEANINGS if issubclass(kind, DominoTuneError)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_is_the_class_that_is_raised_locally(kind: type[DominoTuneError]) -> None:
    from api.problems import problem_of

    raised = (
        InfeasiblePlanError("Too large.", reason="memory")
        if kind is InfeasiblePlanError
        else kind("Too large.")
    )
    again = error_of(json.loads(problem_of(raised).to_json()))
    assert type(again) is (InputError if kind is DominoTuneError else kind)
    assert str(again) == "Too large."
    assert getattr(again, "reason", None) == getattr(raised, "reason", None)
    assert meaning_of(again).exit_code == meaning_of(raised).exit_code


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InputError), (401, AccessError), (403, AccessError), (404, NotFoundError),
        (413, InputError), (429, ServiceError), (500, ServiceError), (503, ServiceError),
        (307, ServiceError),
    ],
)  # fmt: skip
def test_a_status_alone(status: int, kind: type[DominoTuneError]) -> None:
    assert type(error_in(answer(status, b"<html>"))) is kind
    body = {"type": "about:blank", "title": "No", "status": status, "detail": "Not so."}
    found = error_in(answer(status, body, content_type=PROBLEM))
    assert type(found) is kind
    assert str(found).startswith("Not so.")


def test_places_are_named_where_the_detail_does_not() -> None:
    faults = [{"pointer": "#/tp", "detail": "≥ 1"}, {"parameter": "limit", "detail": "≤ 100"}]
    found = error_of({"status": 422, "detail": "Wrong.", "errors": faults})
    assert str(found) == "Wrong. (#/tp: ≥ 1; limit: ≤ 100)"
    same = [{"pointer": "#/tp", "detail": "Wrong."}]
    assert str(error_of({"status": 422, "detail": "Wrong.", "errors": same})) == "Wrong."


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": NaN}', b'{"errors": 5}', b"\xff", b"[" * 100_000]
)
def test_odd_problems_are_errors_too(body: bytes) -> None:
    assert not isinstance(error_in(answer(507, body, content_type=PROBLEM)), StorageError)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a": 1e999}', b"<html>"])
def test_a_response_that_is_no_json(body: bytes) -> None:
    with pytest.raises(ServiceError):
        json_of(answer(200, body))


@pytest.mark.parametrize(
    ("text", "pause_s"), [("5", 5), ("0", 0), ("99999", 60), ("-1", 0), ("soon", 0)]
)
def test_retry_after(text: str, pause_s: float) -> None:
    assert retry_after_s(answer(503, retry_after=text)) == pause_s


@pytest.mark.parametrize(
    "plain", [{}, {"id": "a"}, {"id": 5, "state": "done"}, {"id": "a", "state": "odd"},
              {"id": "a", "state": "done", "progress": 5}]
)  # fmt: skip
def test_what_is_no_job(plain: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="no job"):
        job_of(plain)


def test_a_job_without_a_result() -> None:
    running = job_of({"id": "a", "kind": "tune", "state": "running"})
    with pytest.raises(ServiceError, match="is running"):
        running.result()
    failed = {"type": "/static/problems.html#cannot-store", "title": "", "detail": "Full."}
    with pytest.raises(StorageError, match="Full"):
        job_of({"id": "a", "kind": "tune", "state": "failed", "error": failed}).result()


def test_events_from_lines() -> None:
    reader = EventReader()
    lines = [
        "retry: 1000", "", ": still here", "", "id: 1", "event: running", 'data: {"a":', "data: 1}",
        "", "data:[]", "", "event: odd", "data: {", "", "event: no data", "",
    ]  # fmt: skip
    assert [event for event in map(reader.line, lines) if event is not None] == [{"a": 1}]
