"""Server-sent events of jobs: every change until the job has ended (WHATWG HTML, section 9.2).

An event's id is the job's version. A client that returns with Last-Event-ID gets an event as soon
as the version is another; 204, which stops an EventSource, where the job will not change again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Final

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.auth import Caller
from api.jobs import LONGEST_POLL_S, MOST_STREAMS, counted, find_job, job_head, pause
from api.parts import Parts
from api.problems import ProblemError
from api.wire import JobId, Me, Routes, in_thread, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs.job import Job, JobKind
from simulator.errors import DominoTuneError

routes: Final = Routes("events")
MEDIA_TYPE: Final = "text/event-stream"
FIRST_POLL_S: Final = 0.2
HEARTBEAT_S: Final = 15.0
STREAM_S: Final = 900.0
"""A stream ends after this time; the client returns with the id of its last event."""
RECONNECT_MS: Final = 1000
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=40, description="The id of the last event seen."),
]


@routes.route(
    "GET", "/v1/tunes/{job_id}/events", scope="read", media_type=MEDIA_TYPE, also={204: None}
)
async def get_tune_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The tune at each change, as server-sent events named by its state; ends when it does."""
    return await _events(request, caller, "tune", job_id, last_event_id)


@routes.route(
    "GET", "/v1/sweeps/{job_id}/events", scope="read", media_type=MEDIA_TYPE, also={204: None}
)
async def get_sweep_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The sweep at each change, as server-sent events named by its state; ends when it does."""
    return await _events(request, caller, "sweep", job_id, last_event_id)


@routes.route(
    "GET", "/v1/layouts/{job_id}/events", scope="read", media_type=MEDIA_TYPE, also={204: None}
)
async def get_layout_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The search of layouts at each change, as server-sent events named by its state; ends when it
    does."""
    return await _events(request, caller, "layout", job_id, last_event_id)


@routes.route(
    "GET", "/v1/scales/{job_id}/events", scope="read", media_type=MEDIA_TYPE, also={204: None}
)
async def get_scale_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The search at several numbers of GPUs at each change, as server-sent events named by its
    state; ends when it does."""
    return await _events(request, caller, "scale", job_id, last_event_id)


@routes.route(
    "GET", "/v1/calibrations/{job_id}/events", scope="read", media_type=MEDIA_TYPE,
    also={204: None},
)  # fmt: skip
async def get_calibration_events(
    request: Request, caller: Me, job_id: JobId, last_event_id: LastEventId = None
) -> Response:
    """The calibration at each change, as server-sent events named by its state; ends when it
    does."""
    return await _events(request, caller, "calibration", job_id, last_event_id)


async def _events(
    request: Request, caller: Caller, kind: JobKind, job_id: str, last: str | None
) -> Response:
    parts, job = parts_of(request), await find_job(request, caller, kind, job_id)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    if job.ended and last == str(job.version):
        return Response(status_code=204)
    return _Counted(_stream(request, parts, job, last), parts, caller.key)


class _Counted(StreamingResponse):
    """A stream that is counted from the moment at which the caller's others are, until it ends."""

    def __init__(self, content: AsyncIterator[bytes], parts: Parts, key: str) -> None:
        super().__init__(content, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        self._parts = parts
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raise ProblemError 429 where the caller has MOST_STREAMS open."""
        if self._parts.streams[self._key] >= MOST_STREAMS:
            raise ProblemError(
                429,
                f"{MOST_STREAMS} streams of yours are open, and that is the most; close one.",
                headers={"Retry-After": "5"},
            )
        with counted(self._parts, self._key):
            await super().__call__(scope, receive, send)


async def _stream(
    request: Request, parts: Parts, job: Job, seen: str | None
) -> AsyncIterator[bytes]:
    """Yield events, and comments where nothing happens, so that no proxy closes the connection."""
    end = time.monotonic() + STREAM_S
    sent, pause_s = time.monotonic(), FIRST_POLL_S
    # DominoTuneError: the database is away; the stream ends, and the client returns.
    with suppress(DominoTuneError):
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        while True:
            if str(job.version) != seen:
                seen, sent, pause_s = str(job.version), time.monotonic(), FIRST_POLL_S
                yield _event(request, job)
            if job.ended or parts.draining.is_set() or time.monotonic() > end:
                return
            if time.monotonic() - sent > HEARTBEAT_S:
                sent = time.monotonic()
                yield b": still here\n\n"
            await pause(parts.draining, pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
            job = await in_thread(parts.jobs.get, job.id, job.owner)


def _event(request: Request, job: Job) -> bytes:
    head = f"id: {job.version}\nevent: {job.state}\ndata: ".encode()
    return head + json_bytes(job_head(request, job)) + b"\n\n"
