"""Scales: jobs that find the best layout at each of several numbers of GPUs."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.job_schemas import GpusPointPage, Scale
from api.jobs import Cursor, Limit, points_response
from api.routes.of_jobs import Nouns, Texts, job_routes
from api.schemas import ScaleBody
from api.wire import JobId, Me

routes: Final = job_routes(
    "scale", "scales", ScaleBody, Scale, Nouns("scale", "scales"),
    Texts(
        create="Find the best layout at each number of GPUs for the same global batch (strong "
        "scaling): a job whose points can be read one by one.",
        list="Your searches at several numbers of GPUs, newest first, without their results.",
        get="A search at several numbers of GPUs: its progress, and when it is done its "
        "result.",
        cancel="Call the search off; its points stay, and one that has ended stays as it is.",
        finish="Stop the search and keep what it has: within seconds it is done, with the "
        "points so far, of which the last one's layout is the best so far, or with the "
        "first one.",
        delete="Delete a search that has ended, with its result and points.",
    ),
)  # fmt: skip


@routes.route("GET", "/v1/scales/{job_id}/points", scope="read", returns=GpusPointPage)
async def get_scale_points(
    request: Request, caller: Me, job_id: JobId, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """The points that are known so far, by their place among the numbers of GPUs."""
    return await points_response(request, caller, "scale", job_id, cursor, limit)
