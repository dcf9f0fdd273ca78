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

from api.answers import job_head
from api.auth import authenticate
from api.parts import Parts
from api.problems import ProblemError
from api.routes.jobs import LONGEST_POLL_S, MOST_STREAMS, counted, pause
from api.wire import JobId, Me, Routes, in_thread, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs import Job
from simulator.errors import DominoTuneError

routes: Final = Routes("jobs")
MEDIA_TYPE: Final = "text/event-stream"
FIRST_POLL_S: Final = 0.2
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
    request: Request, parts: Parts, job: Job, seen: str | None
) -> AsyncIterator[bytes]:
    """Yield events, and comments where nothing happens, so that no proxy closes the connection."""
    began = sent = valid = time.monotonic()
    pause_s = FIRST_POLL_S
    # DominoTuneError: the job is gone, or the database is away; ProblemError: the token is no
    # longer valid. The stream ends, and the client learns which when it returns.
    with suppress(DominoTuneError, ProblemError):
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        while True:
            if str(job.version) != seen:
                seen, sent, pause_s = str(job.version), time.monotonic(), FIRST_POLL_S
                yield _event(request, job)
            now = time.monotonic()
            if job.ended or parts.draining.is_set() or now > began + STREAM_S:
                return
            if now - sent > HEARTBEAT_S:
                sent = now
                yield b": still here\n\n"
            if now - valid > TOKEN_S:
                valid = now
                await authenticate(
                    request, parts.tokens, parts.lookups, parts.buckets,
                    required=parts.settings.tokens_required,
                )  # fmt: skip
            await pause(parts.draining, pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
            job = await in_thread(parts.jobs.get, job.id, job.owner)


def _event(request: Request, job: Job) -> bytes:
    head = f"id: {job.version}\nevent: {job.state}\ndata: ".encode()
    return head + json_bytes(job_head(request, job)) + b"\n\n"
