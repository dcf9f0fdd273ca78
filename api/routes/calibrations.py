"""Calibrations: jobs that fit a profile to measured iterations and keep it in the library."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from api.files import profile_response
from api.jobs import (
    Cursor,
    Limit,
    Prefer,
    Wanted,
    cancel_job,
    delete_job,
    find_job,
    job_response,
    page_of_jobs,
    submit_job,
)
from api.schemas import CalibrationBody, CalibrationJob, JobPage, ProfileFile
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of

routes: Final = Routes("calibrations")


@routes.route(
    "POST", "/v1/calibrations", scope="admin", status=202, returns=CalibrationJob,
    also={200: CalibrationJob}, problems=(409,),
)  # fmt: skip
async def create_calibration(
    request: Request,
    caller: Me,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    body: Any = body_of(CalibrationBody),
) -> Response:
    """Fit a profile to measured iterations: a job, which keeps the calibrated profile under its
    new name when it is done."""
    return await submit_job(request, caller, "calibration", body, idempotency_key, prefer)


@routes.route("GET", "/v1/calibrations", scope="read", returns=JobPage)
async def list_calibrations(
    request: Request, caller: Me, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Your calibrations, newest first, without their results."""
    return await page_of_jobs(request, caller, "calibration", wanted, cursor, limit)


@routes.route("GET", "/v1/calibrations/{job_id}", scope="read", returns=CalibrationJob)
async def get_calibration(request: Request, caller: Me, job_id: JobId) -> Response:
    """A calibration: its progress, and when it is done what the runs told."""
    return await job_response(request, await find_job(request, caller, "calibration", job_id))


@routes.route("GET", "/v1/calibrations/{job_id}/profile", scope="read", returns=ProfileFile)
async def get_calibrated_profile(request: Request, caller: Me, job_id: JobId) -> Response:
    """The profile that a calibration made, whatever has become of its name."""
    return await profile_response(request, caller, "calibration", job_id)


@routes.route("POST", "/v1/calibrations/{job_id}/cancel", scope="tune", returns=CalibrationJob)
async def cancel_calibration(request: Request, caller: Me, job_id: JobId) -> Response:
    """Call a calibration off; one that has ended stays as it is."""
    return await cancel_job(request, caller, "calibration", job_id)


@routes.route("DELETE", "/v1/calibrations/{job_id}", scope="tune", status=204, problems=(409,))
async def delete_calibration(request: Request, caller: Me, job_id: JobId) -> Response:
    """Delete a calibration that has ended; its profile stays in the library."""
    return await delete_job(request, caller, "calibration", job_id)
