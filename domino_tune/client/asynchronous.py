# scripts/unasync.py makes sync.py from this file; run it after each edit.
"""AsyncClient: the verbs at a server, for asyncio."""

from __future__ import annotations

import json
from asyncio import CancelledError, sleep
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any
from urllib.parse import urlencode

import httpx

from domino_tune import requests
from domino_tune.base.errors import ServiceError
from domino_tune.base.progress import Progress, no_progress
from domino_tune.client import transport
from domino_tune.client.address import segment
from domino_tune.client.answers import BUSY, Json, check, json_of, retry_after_s
from domino_tune.client.bodies import (
    calibration_body,
    import_query,
    layouts_body,
    plan_body,
    scale_body,
    tune_body,
    whatif_body,
)
from domino_tune.client.events import EventReader
from domino_tune.client.frames import Listing
from domino_tune.client.jobs import (
    CalibrateAnswer,
    Job,
    JobPage,
    LayoutsAnswer,
    ScaleAnswer,
    Search,
    Swept,
    TuneAnswer,
    calibrate_answer,
    job_of,
    layouts_answer,
    page_of,
    path_of,
    scale_answer,
    tune_answer,
)
from domino_tune.client.tokens import Token
from domino_tune.client.transport import JSON_HEADERS, PAUSES_S, new_key
from domino_tune.results.from_json import simulated_from_json
from domino_tune.results.simulate import Simulated
from domino_tune.store.files import read_bytes
from simulator.errors import DominoTuneError


class AsyncClient:
    """A connection to one server. Use it as a context manager, or ``close`` it.

    ``token`` defaults to $DOMINO_TUNE_TOKEN. Raise InputError for a bad URL. Every method raises
    the errors that the verb raises locally, NotFoundError, AccessError, and ServiceError if several
    tries bring no answer. ``progress`` is called with the job's text at each change.
    """

    def __init__(self, server: str, *, token: str | Token | None = None) -> None:
        self._http = httpx.AsyncClient(**transport.options(server, token))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def tune(
        self, request: requests.TuneRequest, progress: Progress = no_progress
    ) -> TuneAnswer:
        """Ask for the best plan and wait for it. Cancel the job if the wait is interrupted."""
        start_s = perf_counter()
        job = await self._ended("/v1/tunes", tune_body(request), progress)
        return tune_answer(job, seconds=perf_counter() - start_s)

    async def submit_tune(self, request: requests.TuneRequest) -> Job:
        """Ask for the best plan without waiting for it."""
        return job_of(await self._post("/v1/tunes", tune_body(request), key=new_key()))

    async def layouts(
        self, request: requests.TuneRequest, progress: Progress = no_progress
    ) -> LayoutsAnswer:
        """Ask for the best layouts and wait for them. Cancel the job if the wait is interrupted."""
        start_s = perf_counter()
        job = await self._ended("/v1/layouts", layouts_body(request), progress)
        return layouts_answer(job, seconds=perf_counter() - start_s)

    async def submit_layouts(self, request: requests.TuneRequest) -> Job:
        """Ask for the best layouts without waiting for them."""
        return job_of(await self._post("/v1/layouts", layouts_body(request), key=new_key()))

    async def scale(
        self, request: requests.TuneRequest, progress: Progress = no_progress
    ) -> ScaleAnswer:
        """Ask for the best layout at each number of GPUs of the request's ``sweep``, and wait for
        them. Cancel the job if the wait is interrupted.
        """
        start_s = perf_counter()
        job = await self._ended("/v1/scales", scale_body(request), progress)
        return scale_answer(job, seconds=perf_counter() - start_s)

    async def submit_scale(self, request: requests.TuneRequest) -> Job:
        """Ask for the best layout at each number of GPUs without waiting for them."""
        return job_of(await self._post("/v1/scales", scale_body(request), key=new_key()))

    async def sweep(self, request: requests.WhatIfRequest, progress: Progress = no_progress) -> Job:
        """Ask for a sweep and wait for it. Leave it running if the wait is interrupted."""
        return await self.wait(await self.submit_sweep(request), progress)

    async def submit_sweep(self, request: requests.WhatIfRequest) -> Job:
        """Ask for a sweep without waiting for it."""
        return job_of(await self._post("/v1/sweeps", plan_body(request), key=new_key()))

    async def calibrate(
        self, request: requests.CalibrateRequest, progress: Progress = no_progress
    ) -> CalibrateAnswer:
        """Ask for a profile that explains the runs in the request's files, and wait until the
        server has stored it. Cancel the job if the wait is interrupted. Raise ConflictError if
        another profile has its name.
        """
        return calibrate_answer(
            await self._ended("/v1/calibrations", calibration_body(request), progress)
        )

    async def submit_calibration(self, request: requests.CalibrateRequest) -> Job:
        """Ask for a calibrated profile without waiting for it."""
        return job_of(
            await self._post("/v1/calibrations", calibration_body(request), key=new_key())
        )

    async def wait(self, job: Job, progress: Progress = no_progress) -> Job:
        """Wait until the job has ended (done, failed or cancelled) and return it."""
        has_events, pause_s = True, transport.POLL_PAUSE_S
        while not job.ended:
            if has_events:
                with suppress(httpx.RequestError, ServiceError):  # the stream broke off
                    has_events = await self._listen(job, progress)
            job = await self._job("GET", job, transport.PATIENT_PAUSES_S)
            if not has_events:
                progress(job.line)
            if not job.ended:
                await sleep(pause_s)
                pause_s = min(1.5 * pause_s, transport.MAX_POLL_PAUSE_S)
        return job

    async def job(self, name: str) -> Job:
        """Return a job of any kind as it is now. Raise NotFoundError."""
        return job_of(await self._get(f"/v1/jobs/{segment(name)}"))

    async def jobs(
        self, cursor: str | None = None, limit: int | None = None, **wanted: str
    ) -> JobPage:
        """Return a page of the caller's jobs, newest first. ``wanted`` are filters: kind, state,
        model, profile, created_from, created_before, and q, words of label or request."""
        return page_of(await self._get("/v1/jobs", cursor=cursor, limit=limit, **wanted))

    async def set_label(self, job: Job, label: str | None) -> Job:
        """Set a job's label, which lists show; None removes it."""
        headers, body = JSON_HEADERS, json.dumps({"label": label}).encode()
        path = f"/v1/jobs/{segment(job.id)}"
        return job_of(json_of(await self._send("PATCH", path, content=body, headers=headers)))

    async def cancel(self, job: Job) -> Job:
        """Cancel a job: it ends without a result."""
        return await self._job("POST", job, verb="cancel")

    async def finish(self, job: Job) -> Job:
        """Stop a job and keep its result so far: it ends soon, with the best so far as
        its result.
        """
        return await self._job("POST", job, verb="finish")

    async def delete(self, job: Job) -> None:
        """Delete a job. Raise ConflictError if it is still queued or running."""
        await self._send("DELETE", path_of(job))

    async def points(
        self,
        name: str,
        cursor: str | None = None,
        limit: int | None = None,
        kind: Swept = "sweep",
    ) -> Listing:
        """Return a page of the points of a sweep, or of another ``kind`` of job that has points."""
        path = f"/v1/{kind}s/{segment(name)}/points"
        return Listing(await self._get(path, cursor=cursor, limit=limit))

    async def plan(self, name: str, kind: Search = "tune", *, of: str | None = None) -> bytes:
        """Return the plan file of a tune, or of another ``kind`` of search: that of the best plan,
        or that of strategy ``of`` in its verdict.
        """
        return await self._file(f"/v1/{kind}s/{segment(name)}/plan", of=of)

    async def export(self, name: str, to: str, kind: Search = "tune") -> Json:
        """Return a search's plan converted for the training framework ``to``."""
        return await self._get(f"/v1/{kind}s/{segment(name)}/plan", to=to)

    async def report(self, name: str, kind: Search = "tune") -> bytes:
        """Return a search's report, an HTML page."""
        return await self._file(f"/v1/{kind}s/{segment(name)}/report")

    async def trace(self, name: str, kind: Search = "tune") -> bytes:
        """Return a search's Chrome trace."""
        return await self._file(f"/v1/{kind}s/{segment(name)}/trace")

    async def validations(self, name: str) -> Listing:
        """Return the measured results of a tune's plan."""
        return Listing(await self._get(f"/v1/tunes/{segment(name)}/validations"))

    async def send_validation(self, name: str, body: bytes, key: str) -> Json:
        """Send measured results of a tune's plan. The server stores one result for each ``key``."""
        return await self._post(f"/v1/tunes/{segment(name)}/validations", body, key=key)

    async def delete_validation(self, name: str, validation: str) -> None:
        """Delete one of the measured results of a tune's plan."""
        await self._send("DELETE", f"/v1/tunes/{segment(name)}/validations/{segment(validation)}")

    async def simulate(self, request: requests.SimulateRequest) -> Simulated:
        """Predict one plan."""
        return simulated_from_json(await self._post("/v1/simulations", plan_body(request)))

    async def whatif(self, request: requests.WhatIfRequest) -> Json:
        """Predict a plan with one thing changed. Return what `whatif --json` prints."""
        return await self._post("/v1/what-ifs", whatif_body(request))

    async def profiles(self, cursor: str | None = None, limit: int | None = None) -> Listing:
        """Return a page of the profiles that the server knows."""
        return Listing(await self._get("/v1/profiles", cursor=cursor, limit=limit))

    async def get_profile(self, name: str) -> tuple[bytes, str]:
        """Return a profile's file and its ETag."""
        response = await self._send("GET", f"/v1/profiles/{segment(name)}")
        return response.content, response.headers.get("ETag", "")

    async def put_profile(self, name: str, body: bytes, if_match: str | None = None) -> Json:
        """Store a new profile, or replace the one with the ETag ``if_match``.

        Raise PreconditionError if the server has another one.
        """
        guard = {"If-Match": if_match} if if_match else {"If-None-Match": "*"}
        headers = {**JSON_HEADERS, **guard}
        path = f"/v1/profiles/{segment(name)}"
        # One try: if its answer is lost, a second one would find the ETag changed by the first.
        return json_of(await self._send("PUT", path, content=body, headers=headers, pauses_s=()))

    async def import_profile(
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
        return json_of(await self._send("POST", path, content=table, headers=headers))

    async def delete_profile(self, name: str, if_match: str | None = None) -> None:
        """Delete a profile; with ``if_match``, only if it has that ETag.

        Raise PreconditionError if it has another one.
        """
        headers = {"If-Match": if_match} if if_match else {}
        await self._send("DELETE", f"/v1/profiles/{segment(name)}", headers=headers)

    async def models(self, cursor: str | None = None, limit: int | None = None) -> Listing:
        """Return a page of the models that the server knows."""
        return Listing(await self._get("/v1/models", cursor=cursor, limit=limit))

    async def add_model(self, name: str, config: bytes) -> Json:
        """Store the model that a Hugging Face config.json describes."""
        return await self._post(f"/v1/models?{urlencode({'name': name})}", config, key=new_key())

    async def delete_model(self, name: str) -> None:
        """Delete a model."""
        await self._send("DELETE", f"/v1/models/{segment(name)}")

    async def _ended(self, path: str, body: bytes, progress: Progress) -> Job:
        """Submit a job, wait until it has ended and return it. Cancel it if the wait is
        interrupted.
        """
        key = new_key()
        job: Job | None = None
        try:
            job = job_of(await self._post(path, body, key=key))
            return await self.wait(job, progress)
        except (CancelledError, KeyboardInterrupt):
            with suppress(DominoTuneError):
                # The server may have a job whose answer did not arrive. Sent again with the same
                # key, the request returns that job.
                job = job or job_of(await self._post(path, body, key=key, pauses_s=()))
                await self._job("POST", job, pauses_s=(), verb="cancel")
            raise

    async def _job(
        self, method: str, job: Job, pauses_s: Sequence[float] = PAUSES_S, verb: str = ""
    ) -> Job:
        """Send a request to the job's own path, or to that of a verb below it. Return the job."""
        path = f"{path_of(job)}/{verb}" if verb else path_of(job)
        return job_of(json_of(await self._send(method, path, pauses_s=pauses_s)))

    async def _get(self, path: str, **query: str | int | None) -> Json:
        """Return the JSON at a path. Omit query values that are None."""
        given = {key: value for key, value in query.items() if value is not None}
        return json_of(await self._send("GET", path, params=given))

    async def _file(self, path: str, **query: str | None) -> bytes:
        """Return the file at a path. Omit query values that are None."""
        asked = {name: value for name, value in query.items() if value is not None}
        response = await self._send("GET", path, params=asked)
        return response.content

    async def _post(
        self, path: str, body: bytes, *, key: str = "", pauses_s: Sequence[float] = PAUSES_S
    ) -> Json:
        """Send JSON. The server processes requests with the same ``key`` only once."""
        headers = {**JSON_HEADERS, "Idempotency-Key": key} if key else JSON_HEADERS
        more = {"content": body, "headers": headers}
        return json_of(await self._send("POST", path, pauses_s=pauses_s, **more))

    async def _send(
        self, method: str, path: str, *, pauses_s: Sequence[float] = PAUSES_S, **more: Any
    ) -> httpx.Response:
        """Send a request and return its successful response; ``more`` is passed to httpx.

        If the connection breaks or the server is busy, send it again after each of ``pauses_s``.
        Raise the error that the last response describes, or ServiceError if none came.
        """
        pauses = iter(pauses_s)
        while True:
            try:
                response = await self._http.request(method, path, **more)
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
            await sleep(pause_s)

    async def _listen(self, job: Job, progress: Progress) -> bool:
        """Report a job's events until the job or the stream ends.

        Return whether the server has events of the job. Raise httpx.RequestError if the connection
        breaks, ServiceError if the events are not those of a job.
        """
        path, headers = f"{path_of(job)}/events", {"Accept": "text/event-stream"}
        timeout = transport.EVENTS_TIMEOUT
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                return False
            events = EventReader()
            async for line in response.aiter_lines():
                event = events.line(line)
                if event and event.get("state") is not None:
                    now = job_of(event)
                    progress(now.line)
                    if now.ended:
                        break
            return True
