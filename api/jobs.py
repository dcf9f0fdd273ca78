"""What jobs of all kinds share: submitting, waiting, and their JSON."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Caller
from api.generate import LONGEST_SLUG, Wire
from api.kinds import KINDS
from api.parts import Parts
from api.problems import Fault, ProblemError
from api.tasks import check_fits
from api.wire import SLUG, body_bytes, in_thread, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.jobs.desk import MAX_LIMIT
from domino_tune.service.jobs.job import Job, JobKind, JobState, no_such_job
from domino_tune.service.jobs.listing import JobFilter

LONGEST_WAIT_S: Final = 30
FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
"""Longest pause between two reads of a job that does not change."""
MOST_STREAMS: Final = 32
"""Most streams and waits of one caller on one replica."""
RETRY_S: Final = 1
"""Retry-After of a job that was just submitted."""
LONGEST_SEARCH: Final = 100
SEARCHES: Final = ("tune", "layout", "scale")
"""Kinds of jobs that are refused if nothing fits in memory."""
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.ASCII)

Prefer = Annotated[
    str | None,
    Header(
        alias="Prefer",
        max_length=200,
        description="`wait=N`: answer when the job has ended, at most N ≤ 30 s.",
    ),
]
Cursor = Annotated[
    str | None, Query(max_length=64, description="`next` of the page before; none: the first.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most entries of a page.")]
Name = Annotated[str | None, Query(pattern=SLUG, max_length=LONGEST_SLUG)]
Moment = Annotated[
    str | None,
    Query(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$",
        description="Time with its zone (RFC 3339), like 2026-01-31T12:00:00Z.",
    ),
]
Words = Annotated[
    str | None,
    Query(
        max_length=LONGEST_SEARCH,
        description="Words, each of which occurs in label or request, in small or capital letters, "
        "or is the job's id.",
    ),
]


async def _wanted(
    state: JobState | None = None,
    model: Name = None,
    profile: Name = None,
    created_from: Moment = None,
    created_before: Moment = None,
    q: Words = None,
) -> JobFilter:
    """Return the filter that a list's query asks for. Raise ProblemError 422 for an
    invalid time.
    """
    return JobFilter(
        state=state, model=model, profile=profile, words=q,
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


Wanted = Annotated[JobFilter, Depends(_wanted)]
"""Parameter type: which jobs a list asks for, by its query."""


async def submit_job(
    request: Request,
    caller: Caller,
    kind: JobKind,
    body: Wire,
    key: str | None,
    prefer: str | None,
) -> Response:
    """Queue a job. Answer 202, or 200 with the job if it ends within the wait that ``prefer`` asks
    for.

    Raise as ``Kind.new`` does, KeyReuseError and QueueFullError.
    """
    job = await _queued(request, caller, kind, body, idempotency(request, caller, key))
    headers = {"Location": job_path(request, job)}
    wait_s = wait_of(prefer)
    if wait_s and parts_of(request).streams[caller.key] < MOST_STREAMS:
        headers["Preference-Applied"] = f"wait={wait_s}"
        with counted(parts_of(request), caller.key):
            job = await _ended(request, job, wait_s)
    if wait_s and job.ended:
        return await job_response(request, job, headers=headers)
    headers["Retry-After"] = str(RETRY_S)
    return await job_response(request, job, status=202, headers=headers)


async def _queued(
    request: Request, caller: Caller, kind: JobKind, body: Wire, given: Idempotency | None
) -> Job:
    """Return a new job, or the job that the key created earlier, without checking anything else."""
    parts = parts_of(request)
    earlier = None if given is None else await in_thread(parts.jobs.replayed, given)
    if earlier is not None:
        return earlier
    new = await in_thread(KINDS[kind].new, body, parts.library, caller.owner)
    if kind in SEARCHES:
        await check_fits(request, new.task)
    job, created = await in_thread(parts.jobs.submit, new, given, parts.settings.most_queued)
    if created:
        parts.wake()
    return job


def idempotency(request: Request, caller: Caller, key: str | None) -> Idempotency | None:
    """Return the key, bound to its caller, route, query and body."""
    if key is None:
        return None
    route = f"{request.method} {request.scope['route'].path}"
    asked = f"{request.url.path}?{request.url.query}\n".encode()
    return Idempotency.of(caller.owner, route, key, asked + body_bytes(request))


def wait_of(prefer: str | None) -> int:
    """Return the seconds of ``wait=N`` in a Prefer header (RFC 7240), at most LONGEST_WAIT_S."""
    found = _WAIT.search(prefer or "")
    return min(int(found[1]), LONGEST_WAIT_S) if found else 0


async def find_job(request: Request, caller: Caller, kind: JobKind | None, identity: str) -> Job:
    """Return the caller's job of that kind, or of any kind if None. Raise NotFoundError."""
    job = await in_thread(parts_of(request).jobs.get, identity, caller.owner)
    if kind is not None and job.kind != kind:
        raise no_such_job(identity)
    return job


async def _ended(request: Request, job: Job, wait_s: float) -> Job:
    """Return the job once it ends, ``wait_s`` has passed, or the service stops."""
    parts = parts_of(request)
    end, pause_s = time.monotonic() + wait_s, FIRST_POLL_S
    while not job.ended and time.monotonic() < end and not parts.draining.is_set():
        await pause(parts.draining, min(pause_s, max(0.0, end - time.monotonic())))
        pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
        job = await in_thread(parts.jobs.get, job.id, job.owner)
    return job


@contextmanager
def counted(parts: Parts, key: str) -> Iterator[None]:
    """Count a stream or wait of the caller ``key`` until it ends."""
    parts.streams[key] += 1
    try:
        yield
    finally:
        parts.streams[key] -= 1
        if not parts.streams[key]:
            del parts.streams[key]


async def pause(draining: asyncio.Event, seconds: float) -> None:
    """Wait ``seconds``, or until the service stops."""
    try:
        await asyncio.wait_for(draining.wait(), seconds)
    except TimeoutError:
        return


async def job_response(
    request: Request, job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with the job and its result, if any; the bytes of the result stay as stored."""
    result = b"null"
    if job.state == "done":
        result = await in_thread(parts_of(request).jobs.result, job.id)
    head = json_bytes(job_head(request, job))
    body = head[:-1] + b',"result":' + result + b"}"
    return json_response(body, status=status, headers=headers)


def job_head(request: Request, job: Job) -> dict[str, Any]:
    """Return the JSON of a job without its result."""
    path = job_path(request, job)
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "label": job.label,
        "request": job.request,
        "stopped_by": job.stopped_by,
        "progress": _progress(request, job),
        "best": job.best,
        "error": job.error,
        "created": rfc3339(job.created_s),
        "started": rfc3339(job.started_s),
        "finished": rfc3339(job.finished_s),
        "links": {"self": path, **{name: f"{path}/{name}" for name in KINDS[job.kind].links}},
    }


def _progress(request: Request, job: Job) -> dict[str, Any]:
    """Return how far a job is, with an estimate of the computing time left, within its limit."""
    found, limit_s = job.progress, parts_of(request).settings.job_s
    ended_s = job.finished_s or time.time()
    eta_s = 0.0 if job.ended else found.eta_s
    return {
        **asdict(found),
        "elapsed_s": None if job.started_s is None else max(0.0, ended_s - job.started_s),
        "eta_s": None if eta_s is None else min(eta_s, max(0.0, limit_s - found.computed_s)),
        "limit_s": limit_s,
    }


def job_path(request: Request, job: Job) -> str:
    """Return the path of a job."""
    return f"{request.scope.get('root_path', '')}/v1/{job.kind}s/{job.id}"


async def page_of_jobs(
    request: Request,
    caller: Caller,
    kind: JobKind | None,
    wanted: JobFilter,
    cursor: str | None,
    limit: int,
) -> Response:
    """Answer with a page of the caller's ``wanted`` jobs, of one kind or of all."""
    found, following = await in_thread(
        parts_of(request).jobs.page, caller.owner, cursor, limit, replace(wanted, kind=kind)
    )
    return page([job_head(request, job) for job in found], following)


async def points_response(
    request: Request,
    caller: Caller,
    kind: JobKind,
    job_id: str,
    cursor: str | None,
    limit: int,
) -> Response:
    """Answer with a page of a job's points so far, by index."""
    job = await find_job(request, caller, kind, job_id)
    found, following = await in_thread(parts_of(request).jobs.points, job.id, cursor, limit)
    items = b",".join(b'{"index":%d,"point":%s}' % (one.index, one.body) for one in found)
    return json_response(b'{"items":[' + items + b'],"next":' + json_bytes(following) + b"}")


def page(items: list[Any], following: str | None = None) -> Response:
    """Answer with a page of a list."""
    return json_response(json_bytes({"items": items, "next": following}))


def json_response(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON that is encoded already."""
    return Response(
        body, status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def rfc3339(seconds: float | None) -> str | None:
    """Return seconds since 1970 as ``2026-01-31T12:00:00.000Z``."""
    if seconds is None:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


async def cancel_job(request: Request, caller: Caller, kind: JobKind, job_id: str) -> Response:
    """Cancel a job of the caller; one that has ended stays as it is."""
    job = await find_job(request, caller, kind, job_id)
    job = await in_thread(parts_of(request).jobs.cancel, job.id, caller.owner)
    return await job_response(request, job)


async def finish_job(request: Request, caller: Caller, kind: JobKind, job_id: str) -> Response:
    """Let a job of the caller end with the best so far; one that has ended stays as it is."""
    job = await find_job(request, caller, kind, job_id)
    job = await in_thread(parts_of(request).jobs.finish, job.id, caller.owner)
    return await job_response(request, job)


async def delete_job(request: Request, caller: Caller, kind: JobKind, job_id: str) -> Response:
    """Delete a job of the caller. Raise ConflictError where it has not ended."""
    job = await find_job(request, caller, kind, job_id)
    await in_thread(parts_of(request).jobs.delete, job.id, caller.owner)
    return Response(status_code=204)
