"""Jobs of all kinds: one list of them, and their labels."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from api.job_schemas import AnyJob, JobHead, JobPage
from api.jobs import (
    Cursor,
    Limit,
    Wanted,
    find_job,
    job_head,
    job_response,
    json_response,
    page_of_jobs,
)
from api.schemas import LabelBody
from api.wire import JobId, Me, Routes, body_of, in_thread, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs.job import JobKind

routes: Final = Routes("jobs")
Kind = Annotated[JobKind | None, Query(description="Only jobs of this kind.")]


@routes.route("GET", "/v1/jobs", scope="read", returns=JobPage)
async def list_jobs(
    request: Request,
    caller: Me,
    wanted: Wanted,
    kind: Kind = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Your jobs of all kinds, newest first, without their results."""
    return await page_of_jobs(request, caller, kind, wanted, cursor, limit)


@routes.route("GET", "/v1/jobs/{job_id}", scope="read", returns=AnyJob)
async def get_job(request: Request, caller: Me, job_id: JobId) -> Response:
    """A job of any kind: its progress, and when it is done its result."""
    return await job_response(request, await find_job(request, caller, None, job_id))


@routes.route("PATCH", "/v1/jobs/{job_id}", scope="tune", returns=JobHead)
async def label_job(
    request: Request, caller: Me, job_id: JobId, body: Any = body_of(LabelBody)
) -> Response:
    """Give a job of yours a label, which lists show and `q` finds."""
    jobs = parts_of(request).jobs
    job = await in_thread(jobs.set_label, job_id, caller.owner, body.label)
    return json_response(json_bytes(job_head(request, job)))
