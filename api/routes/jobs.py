"""Jobs: what takes longer than a caller should wait, in one resource for all kinds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.answers import (
    Cursor,
    IfMatch,
    Limit,
    Prefer,
    etag,
    idempotency,
    job_head,
    job_path,
    job_response,
    json_response,
    page,
    tags,
    wait_of,
)
from api.generate import LONGEST_SLUG
from api.kinds import KINDS, answer_at_once, check, read_job
from api.parts import Parts
from api.problems import JOB_ID, MOMENT, SLUG, Fault, ProblemError
from api.schemas import Job as JobShown
from api.schemas import (
    JobBody,
    JobFile,
    JobHead,
    JobPage,
    LabelBody,
    SimulateBody,
    SimulateResultShown,
    WhatIfBody,
    WhatIfResultShown,
)
from api.wire import (
    REPORT_CSP,
    Caller,
    IdempotencyKey,
    JobId,
    Me,
    Routes,
    authenticate,
    body_of,
    check_scope,
    in_thread,
    parts_of,
    read_by,
)
from domino_tune.base.errors import NotFoundError, PreconditionError
from domino_tune.requests.service import JobKind, JobState
from domino_tune.results import to_json
from domino_tune.service.encoding import json_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.jobs import JobFilter, JobRecord
from domino_tune.service.library import ANY, Library
from domino_tune.store.plans import plan_from_json
from domino_tune.verbs.plan import export_plan, export_text
from simulator.errors import DominoTuneError

FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
"""Longest pause between two reads of a job that does not change."""
MOST_STREAMS: Final = 32
"""Most streams and waits of one owner on one replica."""
RETRY_S: Final = 1
"""Retry-After of a job that was just submitted."""
POINTS: Final = "points"
REPORT: Final = "report"
routes: Final = Routes("jobs")
Name = Annotated[str | None, Query(pattern=SLUG, max_length=LONGEST_SLUG)]
Moment = Annotated[
    str | None,
    Query(
        pattern=MOMENT,
        description="Time with its zone (RFC 3339), like 2026-01-31T12:00:00Z.",
    ),
]
Words = Annotated[
    str | None,
    Query(
        max_length=100,
        description="Words, each of which occurs in label or request, in small or capital letters, "
        "or is the job's id.",
    ),
]
File = Annotated[
    str,
    Path(
        pattern=SLUG, max_length=LONGEST_SLUG,
        description="`plan`, `plan-STRATEGY`, `report`, `trace`, `profile`, or `points`.",
    ),
]  # fmt: skip
To = Annotated[
    Literal["megatron", "megatron-bridge", "deepspeed", "env", "te-userbuffers", "torchtitan"]
    | None,
    Query(description="A plan for this framework; none: the plan file itself."),
]


@routes.route(
    "POST", "/v1/jobs", scope="tune", status=202, returns=JobShown, also={200: JobShown},
    problems=(404, 409),
)  # fmt: skip
async def submit_job(
    request: Request,
    caller: Me,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    body: Any = read_by(read_job, JobBody),
) -> Response:
    """Ask for a job of a kind: `tune` (the best plan of a layout), `layout` (the best layouts of
    some GPUs for a global batch), `scale` (the same at several numbers of GPUs), `whatif` (a plan,
    or the best plan, at many points), `calibrate` (a profile that explains measured iterations;
    scope admin), `validate` (keep what `validate --json` printed of a tune's plan).

    With `Prefer: wait=30` the answer is 200 with the finished job where it ends within 30 seconds.
    """
    check_scope(caller, KINDS[body.kind].scope)
    parts, wait_s = parts_of(request), wait_of(prefer)
    job = await _queued(request, caller, body, idempotency(request, caller, idempotency_key))
    headers = {"Location": job_path(request, job)}
    if wait_s and not job.ended and parts.streams[caller.owner] < MOST_STREAMS:
        headers["Preference-Applied"] = f"wait={wait_s}"
        with counted(parts, caller.owner):
            job = await _ended(parts, job, wait_s)
    if job.ended:
        return await job_response(request, job, headers=headers)
    headers["Retry-After"] = str(RETRY_S)
    return await job_response(request, job, status=202, headers=headers)


async def _queued(
    request: Request, caller: Caller, body: Any, given: Idempotency | None
) -> JobRecord:
    """Return a new job, or the job that the key created earlier, without checking anything else."""
    parts = parts_of(request)
    earlier = None if given is None else await in_thread(parts.jobs.replayed, given)
    if earlier is not None:
        return earlier
    new = await in_thread(KINDS[body.kind].new, body, parts, caller.owner)
    if new.result is None:
        await check(request, caller, new.task)
    job, created = await in_thread(parts.jobs.submit, new, given, parts.settings.most_queued)
    if created:
        parts.wake()
    return job


async def _ended(parts: Parts, job: JobRecord, wait_s: float) -> JobRecord:
    """Return the job once it ends, ``wait_s`` has passed, or the service stops."""
    end, pause_s = time.monotonic() + wait_s, FIRST_POLL_S
    while not job.ended and time.monotonic() < end and not parts.draining.is_set():
        await pause(parts.draining, min(pause_s, max(0.0, end - time.monotonic())))
        pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
        job = await in_thread(parts.jobs.get, job.id, job.owner)
    return job


@contextmanager
def counted(parts: Parts, owner: str) -> Iterator[None]:
    """Count a stream or wait of an owner until it ends."""
    parts.streams[owner] += 1
    try:
        yield
    finally:
        parts.streams[owner] -= 1
        if not parts.streams[owner]:
            del parts.streams[owner]


async def pause(draining: asyncio.Event, seconds: float) -> None:
    """Wait ``seconds``, or until the service stops."""
    try:
        await asyncio.wait_for(draining.wait(), seconds)
    except TimeoutError:
        return


async def _wanted(
    kind: Annotated[JobKind | None, Query(description="Only jobs of this kind.")] = None,
    state: JobState | None = None,
    model: Name = None,
    profile: Name = None,
    of: Annotated[
        str | None, Query(pattern=JOB_ID, description="Only validations of this tune.")
    ] = None,
    created_from: Moment = None,
    created_before: Moment = None,
    q: Words = None,
) -> JobFilter:
    """Return the filter that a list's query asks for. Raise ProblemError 422 for an
    invalid time."""
    return JobFilter(
        kind=kind, state=state, model=model, profile=profile, of=of, words=q,
        from_s=_seconds("created_from", created_from),
        until_s=_seconds("created_before", created_before),
    )  # fmt: skip


def _seconds(name: str, moment: str | None) -> float | None:
    try:
        return None if moment is None else datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        detail = "There is no such time."
        fault = Fault(parameter=name, detail=detail)
        raise ProblemError(422, f"{name}: {detail}", faults=[fault]) from None


@routes.route("GET", "/v1/jobs", scope="read", returns=JobPage)
async def list_jobs(
    request: Request,
    caller: Me,
    wanted: Annotated[JobFilter, Depends(_wanted)],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Your jobs, newest first, without their results."""
    found, following = await in_thread(
        parts_of(request).jobs.page, caller.owner, cursor, limit, wanted
    )
    return page([job_head(request, job) for job in found], following)


@routes.route("GET", "/v1/jobs/{job_id}", scope="read", returns=JobShown)
async def get_job(request: Request, caller: Me, job_id: JobId) -> Response:
    """A job: its progress, the best so far, and when it is done its result."""
    job = await in_thread(parts_of(request).jobs.get, job_id, caller.owner)
    return await job_response(request, job)


@routes.route("PATCH", "/v1/jobs/{job_id}", scope="tune", returns=JobHead, problems=(412,))
async def label_job(
    request: Request,
    caller: Me,
    job_id: JobId,
    if_match: IfMatch = None,
    body: Any = body_of(LabelBody),
) -> Response:
    """Give a job of yours a label, which lists show and `q` finds; with If-Match only where the job
    has not changed since."""
    jobs, wanted = parts_of(request).jobs, tags(if_match)
    version = None
    if wanted and wanted != [ANY]:
        now = await in_thread(jobs.get, job_id, caller.owner)
        if str(now.version) not in wanted:
            raise PreconditionError("The job has changed; get it anew, then decide again.")
        version = now.version
    job = await in_thread(jobs.set_label, job_id, caller.owner, body.label, version)
    headers = {"ETag": etag(job.version)}
    return json_response(json_bytes(job_head(request, job)), headers=headers)


@routes.route("DELETE", "/v1/jobs/{job_id}", scope="tune", status=204)
async def delete_job(request: Request, caller: Me, job_id: JobId) -> Response:
    """Delete a job with its result and files; one that runs ends within seconds."""
    parts = parts_of(request)
    await in_thread(parts.jobs.delete, job_id, caller.owner)
    parts.look()
    return Response(status_code=204)


@routes.route("POST", "/v1/jobs/{job_id}/stop", scope="tune", returns=JobShown)
async def stop_job(request: Request, caller: Me, job_id: JobId) -> Response:
    """Stop a search and keep what it has: within seconds it is done, with the best so far as its
    result, or with the first that it finds."""
    parts = parts_of(request)
    job = await in_thread(parts.jobs.stop, job_id, caller.owner)
    parts.look()
    return await job_response(request, job)


@routes.route("GET", "/v1/jobs/{job_id}/files/{name}", scope="read", returns=JobFile)
async def get_file(
    request: Request, caller: Me, job_id: JobId, name: File, to: To = None
) -> Response:
    """A file of a job: of a tune or a search of layouts that is done its `plan`, the plan of each
    strategy that was compared (`plan-megatron`), its `report` (HTML) and its `trace` (for
    Perfetto); of a calibration its `profile`; of a sweep or scale, while it runs, its `points`.
    With `to` a plan becomes what makes a framework run it, whose `text` a shell can source."""
    parts = parts_of(request)
    job = await in_thread(parts.jobs.get, job_id, caller.owner)
    if name == POINTS:
        return json_response(await in_thread(_points, parts, job))
    data = await in_thread(parts.jobs.artifact, job.id, name)
    if name == REPORT:
        headers = {"Content-Security-Policy": REPORT_CSP}
        return Response(data, media_type="text/html; charset=utf-8", headers=headers)
    if to is not None and name.partition("-")[0] == "plan":
        data = await in_thread(_exported, data, to, parts.library)
    return json_response(data)


def _points(parts: Parts, job: JobRecord) -> bytes:
    if job.kind not in ("whatif", "scale"):
        raise NotFoundError(f"Job {job.id!r} has no points; it is a {job.kind}.")
    found = parts.jobs.points(job.id)
    return b'{"items":[%s]}' % b",".join(
        b'{"index":%d,"point":%s}' % (one.index, one.body) for one in found
    )


def _exported(data: bytes, to: str, library: Library) -> bytes:
    plan_file = plan_from_json(json.loads(data), source="The job's plan")
    made = export_plan(plan_file, to, library.profile)
    return json_bytes({**to_json(made), "text": export_text(made)})


# Server-sent events of jobs -----------------------------------------------------------------------
# Every change until the job has ended (WHATWG HTML, section 9.2).
#
# An event's id is the job's version. A client that returns with Last-Event-ID gets an event as soon
# as the version is another; 204, which stops an EventSource, where the job will not change again.

MEDIA_TYPE: Final = "text/event-stream"
FIRST_EVENT_S: Final = 0.2
HEARTBEAT_S: Final = 15.0
TOKEN_S: Final = 5.0
"""Time between two looks whether the caller's token is still valid."""
STREAM_S: Final = 900.0
"""A stream ends after this time; the client returns with the id of its last event."""
RECONNECT_MS: Final = 1000
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=40, description="The id of the last event seen."),
]


@routes.route(
    "GET", "/v1/jobs/{job_id}/events", scope="read", media_type=MEDIA_TYPE, also={204: None}
)
async def get_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The job at each change, as server-sent events named by its state; ends when it does."""
    parts = parts_of(request)
    job = await in_thread(parts.jobs.get, job_id, caller.owner)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    if job.ended and last_event_id == str(job.version):
        return Response(status_code=204)
    return _Counted(_stream(request, parts, job, last_event_id), parts, caller.owner)


class _Counted(StreamingResponse):
    """A stream that is counted from the moment at which the owner's others are, until it ends."""

    def __init__(self, content: AsyncIterator[bytes], parts: Parts, owner: str) -> None:
        super().__init__(content, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        self._parts = parts
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raise ProblemError 429 where the owner has MOST_STREAMS open."""
        if self._parts.streams[self._owner] >= MOST_STREAMS:
            raise ProblemError(
                429,
                f"{MOST_STREAMS} streams of yours are open, and that is the most; close one.",
                headers={"Retry-After": "5"},
            )
        with counted(self._parts, self._owner):
            await super().__call__(scope, receive, send)


async def _stream(
    request: Request, parts: Parts, job: JobRecord, seen: str | None
) -> AsyncIterator[bytes]:
    """Yield events, and comments where nothing happens, so that no proxy closes the connection."""
    began = sent = valid = time.monotonic()
    pause_s = FIRST_EVENT_S
    # DominoTuneError: the job is gone, or the database is away; ProblemError: the token is no
    # longer valid. The stream ends, and the client learns which when it returns.
    with suppress(DominoTuneError, ProblemError):
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        while True:
            if str(job.version) != seen:
                seen, sent, pause_s = str(job.version), time.monotonic(), FIRST_EVENT_S
                yield _event(request, job)
            now = time.monotonic()
            if job.ended or parts.draining.is_set() or now > began + STREAM_S:
                return
            if now - sent > HEARTBEAT_S:
                sent = now
                yield b": still here\n\n"
            if now - valid > TOKEN_S:
                valid = now
                await authenticate(request)
            await pause(parts.draining, pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
            job = await in_thread(parts.jobs.get, job.id, job.owner)


def _event(request: Request, job: JobRecord) -> bytes:
    head = f"id: {job.version}\nevent: {job.state}\ndata: ".encode()
    return head + json_bytes(job_head(request, job)) + b"\n\n"


# Questions that are answered at once --------------------------------------------------------------
# One plan, as things are or on a changed machine.

question_routes: Final = Routes("questions")


@question_routes.route("POST", "/v1/simulations", scope="read", returns=SimulateResultShown)
async def simulate(request: Request, caller: Me, body: Any = body_of(SimulateBody)) -> Response:
    """Predict one plan beside the baseline and the bound without communication."""
    return json_response(await answer_at_once(request, caller, "simulate", body))


@question_routes.route("POST", "/v1/what-ifs", scope="read", returns=WhatIfResultShown)
async def what_if(request: Request, caller: Me, body: Any = body_of(WhatIfBody)) -> Response:
    """Predict a plan as things are, and where machine or workload are changed. Several points, or
    the best plan of each, are a job of kind `whatif`."""
    return json_response(await answer_at_once(request, caller, "whatif", body))
