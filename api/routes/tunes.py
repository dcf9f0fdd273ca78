"""Tunes: jobs that find the best plan."""

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
from api.schemas import JobPage, PlanAnswer, Trace, Tune, TuneBody
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of

routes: Final = Routes("tunes")


@routes.route("POST", "/v1/tunes", scope="tune", status=202, returns=Tune, also={200: Tune})
async def create_tune(
    request: Request,
    caller: Me,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    body: Any = body_of(TuneBody),
) -> Response:
    """Find the best plan: a job, whose progress and result are at its Location.

    With `Prefer: wait=10` the answer is 200 with the tune where it ends within 10 seconds.
    """
    return await submit_job(request, caller, "tune", body, idempotency_key, prefer)


@routes.route("GET", "/v1/tunes", scope="read", returns=JobPage)
async def list_tunes(
    request: Request, caller: Me, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Your tunes, newest first, without their results."""
    return await page_of_jobs(request, caller, "tune", wanted, cursor, limit)


@routes.route("GET", "/v1/tunes/{job_id}", scope="read", returns=Tune)
async def get_tune(request: Request, caller: Me, job_id: JobId) -> Response:
    """A tune: its progress, the best plan so far, and when it is done its result."""
    return await job_response(request, await find_job(request, caller, "tune", job_id))


@routes.route("POST", "/v1/tunes/{job_id}/cancel", scope="tune", returns=Tune)
async def cancel_tune(request: Request, caller: Me, job_id: JobId) -> Response:
    """Call a tune off; one that has ended stays as it is."""
    return await cancel_job(request, caller, "tune", job_id)


@routes.route("POST", "/v1/tunes/{job_id}/finish", scope="tune", returns=Tune)
async def finish_tune(request: Request, caller: Me, job_id: JobId) -> Response:
    """Stop a tune and keep what it has: within seconds it is done, with the best so far as its
    result, or with the first that it finds."""
    return await finish_job(request, caller, "tune", job_id)


@routes.route("DELETE", "/v1/tunes/{job_id}", scope="tune", status=204, problems=(409,))
async def delete_tune(request: Request, caller: Me, job_id: JobId) -> Response:
    """Delete a tune that has ended, with its result, files and validations."""
    return await delete_job(request, caller, "tune", job_id)


@routes.route("GET", "/v1/tunes/{job_id}/plan", scope="read", returns=PlanAnswer)
async def get_tune_plan(request: Request, caller: Me, job_id: JobId, to: To = None) -> Response:
    """The best plan of a tune that is done, as a plan file; with `to` what makes a framework run
    it, whose `text` is for a shell to source."""
    return await plan_response(request, caller, "tune", job_id, to)


@routes.route("GET", "/v1/tunes/{job_id}/report", scope="read", media_type="text/html")
async def get_tune_report(request: Request, caller: Me, job_id: JobId) -> Response:
    """The page of a tune that is done, with everything inside."""
    return await report_response(request, caller, "tune", job_id)


@routes.route("GET", "/v1/tunes/{job_id}/trace", scope="read", returns=Trace)
async def get_tune_trace(request: Request, caller: Me, job_id: JobId) -> Response:
    """The timelines of a tune that is done, as a Chrome trace for Perfetto."""
    return await trace_response(request, caller, "tune", job_id)
