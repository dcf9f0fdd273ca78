"""Layouts: jobs that find how to divide a model and a global batch among so many GPUs."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.files import To, plan_response, report_response, trace_response
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
    page_of_jobs,
    submit_job,
)
from api.schemas import JobPage, LayoutBody, LayoutSearch, PlanAnswer, Trace
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of

routes: Final = Routes("layouts")


@routes.route(
    "POST", "/v1/layouts", scope="tune", status=202, returns=LayoutSearch, also={200: LayoutSearch}
)
async def create_layout_search(
    request: Request,
    caller: Me,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    body: Any = body_of(LayoutBody),
) -> Response:
    """Find the best layouts of so many GPUs for a global batch: a job, whose progress and result
    are at its Location. What is given of a layout stays."""
    return await submit_job(request, caller, "layout", body, idempotency_key, prefer)


@routes.route("GET", "/v1/layouts", scope="read", returns=JobPage)
async def list_layout_searches(
    request: Request, caller: Me, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Your searches of layouts, newest first, without their results."""
    return await page_of_jobs(request, caller, "layout", wanted, cursor, limit)


@routes.route("GET", "/v1/layouts/{job_id}", scope="read", returns=LayoutSearch)
async def get_layout_search(request: Request, caller: Me, job_id: JobId) -> Response:
    """A search of layouts: its progress, the best layout so far, and when it is done its result."""
    return await job_response(request, await find_job(request, caller, "layout", job_id))


@routes.route("POST", "/v1/layouts/{job_id}/cancel", scope="tune", returns=LayoutSearch)
async def cancel_layout_search(request: Request, caller: Me, job_id: JobId) -> Response:
    """Call a search of layouts off; one that has ended stays as it is."""
    return await cancel_job(request, caller, "layout", job_id)


@routes.route("POST", "/v1/layouts/{job_id}/finish", scope="tune", returns=LayoutSearch)
async def finish_layout_search(request: Request, caller: Me, job_id: JobId) -> Response:
    """Stop a search and keep what it has: within seconds it is done, with the best so far as its
    result, or with the first that it finds."""
    return await finish_job(request, caller, "layout", job_id)


@routes.route("DELETE", "/v1/layouts/{job_id}", scope="tune", status=204, problems=(409,))
async def delete_layout_search(request: Request, caller: Me, job_id: JobId) -> Response:
    """Delete a search that has ended, with its result and files."""
    return await delete_job(request, caller, "layout", job_id)


@routes.route("GET", "/v1/layouts/{job_id}/plan", scope="read", returns=PlanAnswer)
async def get_layout_plan(request: Request, caller: Me, job_id: JobId, to: To = None) -> Response:
    """The plan of the best layout of a search that is done, as a plan file; with `to` what makes a
    framework run it, whose `text` is for a shell to source."""
    return await plan_response(request, caller, "layout", job_id, to)


@routes.route("GET", "/v1/layouts/{job_id}/report", scope="read", media_type="text/html")
async def get_layout_report(request: Request, caller: Me, job_id: JobId) -> Response:
    """The page of a search of layouts that is done, with everything inside."""
    return await report_response(request, caller, "layout", job_id)


@routes.route("GET", "/v1/layouts/{job_id}/trace", scope="read", returns=Trace)
async def get_layout_trace(request: Request, caller: Me, job_id: JobId) -> Response:
    """The timelines of the best layout of a search that is done, as a Chrome trace for Perfetto."""
    return await trace_response(request, caller, "layout", job_id)
