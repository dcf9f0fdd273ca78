"""Client: the verbs at a server; requests as JSON bodies."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from domino_tune import requests
from domino_tune.base.errors import ServiceError
from domino_tune.base.progress import Progress, no_progress
from domino_tune.client import transport
from domino_tune.client.jobs import Asked, Job, JobPage, ListPage, job_of, page_of
from domino_tune.client.transport import (
    BUSY,
    JSON_HEADERS,
    PAUSES_S,
    EventReader,
    Json,
    SecretToken,
    check,
    json_of,
    new_key,
    retry_after_s,
    segment,
)
from domino_tune.requests import QUESTIONS, CalibrateRequest, ProfilesImportRequest, WhatIfRequest
from domino_tune.requests.fields import PlanFields
from domino_tune.requests.options import Request, by_field, flag_of
from domino_tune.results.from_json import result_from_json, simulated_from_json
from domino_tune.results.simulate import Simulated
from domino_tune.results.whatif import WhatIf
from domino_tune.store.files import read_bytes, read_text
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import LABEL, MEASURED, NOTE, ROUNDING, read_runs
from domino_tune.store.plans import load_plan
from simulator.errors import DominoTuneError, InputError, unknown_name

# Requests as JSON bodies --------------------------------------------------------------------------
# Fields by the command line's names; fields at their default left out.

NAMES: Final = {"model": "models", "profile": "profiles", "into": "profiles"}
"""Fields that hold names, each with the list that a server has of them."""


def job_body(kind: str, request: Asked) -> bytes:
    """Return the body that asks for a job. Raise InputError for options that a server cannot
    follow, and for another request than the kind's."""
    if kind not in FIELDS:
        raise unknown_name("kind of job", kind, FIELDS)
    wanted = QUESTIONS[kind]
    if not isinstance(request, wanted):
        raise InputError(f"A {kind} asks a {wanted.__name__}, got a {type(request).__name__}.")
    return _encoded({"kind": kind, **FIELDS[kind](request)})


def _given(request: Request) -> dict[str, Any]:
    """Return the fields that are not at their default. Raise InputError for a file in place of a
    name."""
    given = request.given()
    for name, listed in NAMES.items():
        text = given.get(name)
        if text and (os.sep in text or text.endswith(".json")):
            raise InputError(
                f"{flag_of(type(request), name)} {text!r} is a file; a server takes the names that "
                f"it lists under /v1/{listed}."
            )
    return given


def _plan(request: PlanFields) -> dict[str, Any]:
    given = _given(request)
    if request.plan:
        given["plan"] = load_plan(request.plan).to_json()
    return given


def plan_body(request: PlanFields) -> bytes:
    """Return the body of a simulation, with the content of the plan file.

    Raise PlanFileError for a bad plan file.
    """
    return _encoded(_plan(request))


def whatif_body(request: WhatIfRequest) -> bytes:
    """Return the body of a what-if. Raise InputError for one that is a sweep."""
    if request.sweep is not None or request.retune:
        raise InputError("--sweep and --retune take a while: ask for a job of kind `whatif`.")
    return plan_body(request)


def _calibration(request: CalibrateRequest) -> dict[str, Any]:
    """Return the fields of a calibration, with the runs of its files as a table.

    Raise InputError for files that cannot be read, and for a profile that is a file.
    """
    _given(request)
    rows = read_runs(read_text(request.runs), request.runs) if request.runs else []
    rows += [read_megatron_log(read_text(path), Path(path).name) for path in request.megatron_log]
    cells = [
        {
            LABEL: row.label, MEASURED: repr(row.measured_ms), ROUNDING: repr(row.rounding_ms),
            NOTE: row.note, **by_field(row.options),
        }
        for row in rows
    ]  # fmt: skip
    table = io.StringIO()
    columns = list(dict.fromkeys(name for row in cells for name in row))
    writer = csv.DictWriter(table, columns or [MEASURED], restval="")
    writer.writeheader()
    writer.writerows(cells)
    return {"profile": request.profile, "name": request.name, "runs": table.getvalue()}


FIELDS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "tune": _given, "layout": _given, "scale": _given, "whatif": _plan, "calibrate": _calibration,
}  # fmt: skip
"""What makes the fields of each kind of job, which is named as the verb that asks the same."""


def import_query(request: ProfilesImportRequest) -> str:
    """Return the query of an import: all options but the file and the new name."""
    given = _given(request)
    return urlencode({name: one for name, one in given.items() if name not in ("file", "name")})


def _encoded(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


class Client:
    """A connection to one server. Use it as a context manager, or ``close`` it.

    ``token`` defaults to $DOMINO_TUNE_TOKEN. Raise InputError for a bad URL. Every method raises
    the errors that the verb raises locally, NotFoundError, AccessError, and ServiceError if several
    tries bring no answer. ``progress`` is called with the job's text at each change.
    """

    def __init__(self, server: str, *, token: str | SecretToken | None = None) -> None:
        self._http = httpx.Client(**transport.options(server, token))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, kind: str, request: Asked) -> Job:
        """Ask for a job without waiting for it.

        ``kind``: tune, layout, scale, sweep (of a WhatIfRequest), calibration. Raise InputError for
        options that a server cannot follow.
        """
        return job_of(self._post("/v1/jobs", job_body(kind, request), key=new_key()))

    def result(self, kind: str, request: Asked, progress: Progress = no_progress) -> Job:
        """Ask for a job, wait and return it with its result; ``Job.answer`` reads that. Delete the
        job if the wait is interrupted. Raise the error of a job that failed."""
        body, key, start_s = job_body(kind, request), new_key(), perf_counter()
        job: Job | None = None
        try:
            job = job_of(self._post("/v1/jobs", body, key=key))
            job = self.wait(job, progress)
        except KeyboardInterrupt:
            with suppress(DominoTuneError):
                # The server may have a job whose answer did not arrive. Sent again with the same
                # key, the request returns that job.
                job = job or job_of(self._post("/v1/jobs", body, key=key, pauses_s=()))
                self._send("DELETE", _path(job.id), pauses_s=())
            raise
        job.result()
        return replace(job, elapsed_s=perf_counter() - start_s)

    def wait(self, job: Job, progress: Progress = no_progress) -> Job:
        """Wait until the job is done or failed and return it."""
        pause_s = transport.POLL_PAUSE_S
        while not job.ended:
            with suppress(httpx.RequestError, ServiceError):  # the stream broke off
                self._listen(job, progress)
            job = self._job("GET", job.id, transport.PATIENT_PAUSES_S)
            if not job.ended:
                progress(job.line)
                sleep(pause_s)
                pause_s = min(1.5 * pause_s, transport.MAX_POLL_PAUSE_S)
        return job

    def job(self, name: str) -> Job:
        """Return a job as it is now. Raise NotFoundError."""
        return self._job("GET", name)

    def jobs(self, cursor: str | None = None, limit: int | None = None, **wanted: str) -> JobPage:
        """Return a page of the caller's jobs, newest first. ``wanted`` are filters: kind, state,
        model, profile, of, created_from, created_before, and q, words of label or request."""
        return page_of(self._get("/v1/jobs", cursor=cursor, limit=limit, **wanted))

    def set_label(self, name: str, label: str | None) -> Job:
        """Set a job's label, which lists show; None removes it."""
        body = json.dumps({"label": label}).encode()
        return job_of(json_of(self._send("PATCH", _path(name), content=body, headers=JSON_HEADERS)))

    def stop(self, name: str) -> Job:
        """Stop a job and keep its result so far: it ends soon, with the best so far as its
        result."""
        return job_of(json_of(self._send("POST", f"{_path(name)}/stop")))

    def delete(self, name: str) -> None:
        """Delete a job with its result; one that runs ends."""
        self._send("DELETE", _path(name))

    def file(self, name: str, file: str) -> bytes:
        """Return a file of a job: ``plan``, ``plan-STRATEGY``, ``report``, ``trace``, ``profile``
        or ``points``."""
        return self._send("GET", f"{_path(name)}/files/{segment(file)}").content

    def export(self, name: str, to: str) -> Json:
        """Return a search's plan converted for the training framework ``to``."""
        return self._get(f"{_path(name)}/files/plan", to=to)

    def send_validation(self, tune: str, measured: Any, key: str) -> Job:
        """Send measured results of a tune's plan, which ``validate --json`` prints. The server
        stores one result for each ``key``."""
        body = json.dumps({"kind": "validate", "of": tune, "result": measured}).encode()
        return job_of(self._post("/v1/jobs", body, key=key))

    def simulate(self, request: requests.SimulateRequest) -> Simulated:
        """Predict one plan."""
        return simulated_from_json(self._post("/v1/simulations", plan_body(request)))

    def whatif(self, request: requests.WhatIfRequest) -> WhatIf:
        """Predict a plan with one thing changed."""
        plain = self._post("/v1/what-ifs", whatif_body(request))
        found: WhatIf = result_from_json("whatif", plain, seconds=0.0)
        return found

    def profiles(self, cursor: str | None = None, limit: int | None = None) -> ListPage:
        """Return a page of the profiles that the server knows."""
        return ListPage(self._get("/v1/profiles", cursor=cursor, limit=limit))

    def get_profile(self, name: str) -> tuple[bytes, str]:
        """Return a profile's file and its ETag."""
        response = self._send("GET", f"/v1/profiles/{segment(name)}")
        return response.content, response.headers.get("ETag", "")

    def put_profile(self, name: str, body: bytes, if_match: str | None = None) -> Json:
        """Store a new profile, or replace the one with the ETag ``if_match``.

        Raise PreconditionError if the server has another one.
        """
        guard = {"If-Match": if_match} if if_match else {"If-None-Match": "*"}
        headers = {**JSON_HEADERS, **guard}
        path = f"/v1/profiles/{segment(name)}"
        # One try: if its answer is lost, a second one would find the ETag changed by the first.
        return json_of(self._send("PUT", path, content=body, headers=headers, pauses_s=()))

    def import_profile(
        self, request: requests.ProfilesImportRequest, if_match: str | None = None
    ) -> Json:
        """Add the table in the request's file to a copy of a profile. Store the copy as a new
        profile, or replace the one with the ETag ``if_match``.

        Raise PreconditionError if the server has another one.
        """
        guard = {"If-Match": if_match} if if_match else {"If-None-Match": "*"}
        headers = {"Content-Type": "text/csv", "Idempotency-Key": new_key(), **guard}
        path = f"/v1/profiles/{segment(request.name)}/import?{import_query(request)}"
        table = read_bytes(request.file)
        return json_of(self._send("POST", path, content=table, headers=headers))

    def delete_profile(self, name: str, if_match: str | None = None) -> None:
        """Delete a profile; with ``if_match``, only if it has that ETag.

        Raise PreconditionError if it has another one.
        """
        headers = {"If-Match": if_match} if if_match else {}
        self._send("DELETE", f"/v1/profiles/{segment(name)}", headers=headers)

    def models(self, cursor: str | None = None, limit: int | None = None) -> ListPage:
        """Return a page of the models that the server knows."""
        return ListPage(self._get("/v1/models", cursor=cursor, limit=limit))

    def add_model(self, name: str, config: bytes) -> Json:
        """Store the model that a Hugging Face config.json describes."""
        return self._post(f"/v1/models?{urlencode({'name': name})}", config, key=new_key())

    def delete_model(self, name: str) -> None:
        """Delete a model."""
        self._send("DELETE", f"/v1/models/{segment(name)}")

    def _job(self, method: str, name: str, pauses_s: Sequence[float] = PAUSES_S) -> Job:
        return job_of(json_of(self._send(method, _path(name), pauses_s=pauses_s)))

    def _get(self, path: str, **query: str | int | None) -> Json:
        """Return the JSON at a path. Omit query values that are None."""
        given = {key: value for key, value in query.items() if value is not None}
        return json_of(self._send("GET", path, params=given))

    def _post(
        self, path: str, body: bytes, *, key: str = "", pauses_s: Sequence[float] = PAUSES_S
    ) -> Json:
        """Send JSON. The server processes requests with the same ``key`` only once."""
        headers = {**JSON_HEADERS, "Idempotency-Key": key} if key else JSON_HEADERS
        return json_of(self._send("POST", path, pauses_s=pauses_s, content=body, headers=headers))

    def _send(
        self, method: str, path: str, *, pauses_s: Sequence[float] = PAUSES_S, **more: Any
    ) -> httpx.Response:
        """Send a request and return its successful response; ``more`` is passed to httpx.

        If the connection breaks or the server is busy, send it again after each of ``pauses_s``.
        Raise the error that the last response describes, or ServiceError if none came.
        """
        pauses = iter(pauses_s)
        while True:
            try:
                response = self._http.request(method, path, **more)
            except httpx.RequestError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise transport.unreachable(self._http.base_url, error) from None
            else:
                pause_s = next(pauses, None) if response.status_code in BUSY else None
                if pause_s is None:
                    check(response)
                    return response
                pause_s = max(pause_s, retry_after_s(response))
            sleep(pause_s)

    def _listen(self, job: Job, progress: Progress) -> None:
        """Report a job's events until the job or the stream ends. Raise httpx.RequestError if the
        connection breaks, ServiceError if the events are not those of a job."""
        path, headers = f"{_path(job.id)}/events", {"Accept": "text/event-stream"}
        timeout = transport.EVENTS_TIMEOUT
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                return
            events = EventReader()
            for line in response.iter_lines():
                event = events.line(line)
                if event and event.get("state") is not None:
                    now = job_of(event)
                    progress(now.line)
                    if now.ended:
                        return


def _path(job: str) -> str:
    return f"/v1/jobs/{segment(job)}"
