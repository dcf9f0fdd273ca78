"""Calibrations: jobs that fit a profile to measured iterations and keep it in the library."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.files import profile_response
from api.job_schemas import CalibrationJob
from api.routes.of_jobs import Nouns, Texts, job_routes
from api.schemas import CalibrationBody, ProfileFile
from api.wire import JobId, Me

routes: Final = job_routes(
    "calibration", "calibrations", CalibrationBody, CalibrationJob,
    Nouns("calibration", "calibrations"),
    Texts(
        create="Fit a profile to measured iterations: a job, which keeps the calibrated profile "
        "under its new name when it is done.",
        list="Your calibrations, newest first, without their results.",
        get="A calibration: its progress, and when it is done what the runs showed.",
        cancel="Call a calibration off; one that has ended stays as it is.",
        delete="Delete a calibration that has ended; its profile stays in the library.",
    ),
    makes="admin", problems=(409,),
)  # fmt: skip


@routes.route("GET", "/v1/calibrations/{job_id}/profile", scope="read", returns=ProfileFile)
async def get_calibrated_profile(request: Request, caller: Me, job_id: JobId) -> Response:
    """The profile that a calibration made, whatever has become of its name."""
    return await profile_response(request, caller, "calibration", job_id)
