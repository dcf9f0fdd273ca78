"""Conditions of requests, and answers that are JSON: whole, as pages of lists, and jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.middleware import ZIPPED
from api.problems import ProblemError
from api.wire import Caller, body_bytes, in_thread, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.jobs import JobRecord
from domino_tune.service.library import ANY
from simulator.errors import InputError

# Conditions of requests ---------------------------------------------------------------------------
# Keys of idempotency, If-Match and If-None-Match, and Prefer.

LONGEST_WAIT_S: Final = 30
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.ASCII)
_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match", max_length=500,
        description="ETag of what may be changed; needed where a profile is replaced.",
    ),
]  # fmt: skip
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match", max_length=500,
        description="`*`: only where nothing is there.",
    ),
]  # fmt: skip
Prefer = Annotated[
    str | None,
    Header(
        alias="Prefer",
        max_length=200,
        description="`wait=N`: answer when the job has ended, at most N ≤ 30 s.",
    ),
]


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


def etag(version: str | int) -> str:
    """Return a content's id, or a job's version, which every change raises, as a strong ETag."""
    return f'"{version}"'


def tags(header: str | None) -> list[str]:
    """Return the content ids of If-Match or If-None-Match, or ``*``; weak tags match nothing.

    Raise ProblemError 400 for anything else (RFC 9110, section 13.1).
    """
    if header is None:
        return []
    if header.strip() == ANY:
        return [ANY]
    found, place = [], 0
    while place < len(header):
        tag = _TAG.match(header, place)
        if tag is None:
            raise ProblemError(400, 'If-Match and If-None-Match hold `*`, or tags like "sha256:…".')
        place = tag.end()
        if not tag[1]:
            found.append(tag[2].removesuffix(ZIPPED))
    return found or ["none"]


# Answers that are JSON ----------------------------------------------------------------------------
# Whole, as pages of lists, and jobs.

LINKS: Final = {"events": "events", "stop": "stop", "files": "files/{name}"}
"""Link -> the place below a job; that of files is a template (RFC 6570)."""
MAX_LIMIT: Final = 200
"""Most entries of a page."""
Entry = TypeVar("Entry")
Cursor = Annotated[
    str | None, Query(max_length=64, description="`next` of the page before; none: the first.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most entries of a page.")]


def json_response(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON that is encoded already."""
    return Response(
        body, status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def page(items: list[Any], following: str | None = None) -> Response:
    """Answer with a page of a list."""
    return json_response(json_bytes({"items": items, "next": following}))


def sliced(
    entries: Sequence[Entry],
    key: Callable[[Entry], str],
    plain: Callable[[Entry], Any],
    cursor: str | None,
    limit: int,
) -> Response:
    """Answer with ``limit`` entries after ``cursor``, the key of an entry. Raise InputError for a
    bad cursor."""
    keys = [key(entry) for entry in entries]
    if cursor is not None and cursor not in keys:
        raise InputError(f"{cursor[:64]!r} is no cursor; take `next` of the page before.")
    first = 0 if cursor is None else keys.index(cursor) + 1
    shown = entries[first : first + limit]
    more = first + limit < len(entries)
    return page([plain(entry) for entry in shown], keys[first + limit - 1] if more else None)


async def job_response(
    request: Request, job: JobRecord, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with the job and its result, if any; the bytes of the result stay as stored."""
    result = b"null"
    if job.state == "done":
        result = await in_thread(parts_of(request).jobs.result, job.id)
    head = json_bytes(job_head(request, job))
    body = head[:-1] + b',"result":' + result + b"}"
    tagged = {"ETag": etag(job.version), **(headers or {})}
    return json_response(body, status=status, headers=tagged)


def job_head(request: Request, job: JobRecord) -> dict[str, Any]:
    """Return the JSON of a job without its result."""
    path = job_path(request, job)
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "label": job.label,
        "request": job.request,
        "attempts": job.attempts,
        "stopped_by": job.stopped_by,
        "progress": _progress(request, job),
        "best": job.best,
        "error": job.error,
        "created": rfc3339(job.created_s),
        "started": rfc3339(job.started_s),
        "finished": rfc3339(job.finished_s),
        "links": {"self": path, **{name: f"{path}/{place}" for name, place in LINKS.items()}},
    }


def _progress(request: Request, job: JobRecord) -> dict[str, Any]:
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


def job_path(request: Request, job: JobRecord) -> str:
    """Return the path of a job."""
    return f"{request.scope.get('root_path', '')}/v1/jobs/{job.id}"


def rfc3339(seconds: float | None) -> str | None:
    """Return seconds since 1970 as ``2026-01-31T12:00:00.000Z``."""
    if seconds is None:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
