"""Sweeps: jobs that predict a plan, or the best plan, at many points."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.job_schemas import Sweep, SweepPointPage
from api.jobs import Cursor, Limit, points_response
from api.routes.of_jobs import Nouns, Texts, job_routes
from api.schemas import SweepBody
from api.wire import JobId, Me

routes: Final = job_routes(
    "sweep", "sweeps", SweepBody, Sweep, Nouns("sweep", "sweeps"),
    Texts(
        create="Predict a plan where machine or workload take each of many values: a job whose "
        "points can be read one by one; with `retune` each has the best plan of its own.",
        list="Your sweeps, newest first, without their results.",
        get="A sweep: its progress, and when it is done its result.",
        cancel="Call a sweep off; its points stay, and one that has ended stays as it is.",
        finish="Stop a sweep and keep what it has: within seconds it is done, with the points "
        "so far as its result, or with the first one. A point that is being retuned has "
        "the best plan so far.",
        delete="Delete a sweep that has ended, with its result and points.",
    ),
)  # fmt: skip


@routes.route("GET", "/v1/sweeps/{job_id}/points", scope="read", returns=SweepPointPage)
async def get_sweep_points(
    request: Request, caller: Me, job_id: JobId, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """The points that are known so far, by their place among the values."""
    return await points_response(request, caller, "sweep", job_id, cursor, limit)
