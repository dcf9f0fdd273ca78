"""Sweeps: jobs that predict a plan, or the best plan, at many points."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.jobs import (
    Cursor,
    Limit,
    Prefer,
    Wanted,
    cancel_job,
    delete_job,
    find_job,
    finish_job,
    job_response,
    json_response,
    page_of_jobs,
    submit_job,
)
from api.schemas import JobPage, Sweep, SweepBody, SweepPointPage
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of, in_thread, parts_of
from domino_tune.service.encoding import json_bytes

routes: Final = Routes("sweeps")


@routes.route("POST", "/v1/sweeps", scope="tune", status=202, returns=Sweep, also={200: Sweep})
async def create_sweep(
    request: Request,
    caller: Me,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    body: Any = body_of(SweepBody),
) -> Response:
    """Predict a plan where machine or workload take each of many values: a job whose points can be
    read one by one; with `retune` each has the best plan of its own."""
    return await submit_job(request, caller, "sweep", body, idempotency_key, prefer)


@routes.route("GET", "/v1/sweeps", scope="read", returns=JobPage)
async def list_sweeps(
    request: Request, caller: Me, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Your sweeps, newest first, without their results."""
    return await page_of_jobs(request, caller, "sweep", wanted, cursor, limit)


@routes.route("GET", "/v1/sweeps/{job_id}", scope="read", returns=Sweep)
async def get_sweep(request: Request, caller: Me, job_id: JobId) -> Response:
    """A sweep: its progress, and when it is done its result."""
    return await job_response(request, await find_job(request, caller, "sweep", job_id))


@routes.route("GET", "/v1/sweeps/{job_id}/points", scope="read", returns=SweepPointPage)
async def get_sweep_points(
    request: Request, caller: Me, job_id: JobId, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """The points that are known so far, by their place among the values."""
    job = await find_job(request, caller, "sweep", job_id)
    found, following = await in_thread(parts_of(request).jobs.points, job.id, cursor, limit)
    items = b",".join(b'{"index":%d,"point":%s}' % (one.index, one.body) for one in found)
    return json_response(b'{"items":[' + items + b'],"next":' + json_bytes(following) + b"}")


@routes.route("POST", "/v1/sweeps/{job_id}/cancel", scope="tune", returns=Sweep)
async def cancel_sweep(request: Request, caller: Me, job_id: JobId) -> Response:
    """Call a sweep off; its points stay, and one that has ended stays as it is."""
    return await cancel_job(request, caller, "sweep", job_id)


@routes.route("POST", "/v1/sweeps/{job_id}/finish", scope="tune", returns=Sweep)
async def finish_sweep(request: Request, caller: Me, job_id: JobId) -> Response:
    """Stop a sweep and keep what it has: within seconds it is done, with the points so far as its
    result, or with the first one."""
    return await finish_job(request, caller, "sweep", job_id)


@routes.route("DELETE", "/v1/sweeps/{job_id}", scope="tune", status=204, problems=(409,))
async def delete_sweep(request: Request, caller: Me, job_id: JobId) -> Response:
    """Delete a sweep that has ended, with its result and points."""
    return await delete_job(request, caller, "sweep", job_id)
