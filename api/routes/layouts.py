"""Layouts: jobs that find how to divide a model and a global batch among a number of GPUs."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.files import Of, To, plan_response, report_response, trace_response
from api.job_schemas import LayoutSearch
from api.routes.of_jobs import Nouns, Texts, job_routes
from api.schemas import LayoutBody, PlanAnswer, Trace
from api.wire import JobId, Me

routes: Final = job_routes(
    "layout", "layouts", LayoutBody, LayoutSearch, Nouns("layout_search", "layout_searches"),
    Texts(
        create="Find the best layouts of this many GPUs for a global batch: a job, whose progress "
        "and result are at its Location. What is given of a layout stays.",
        list="Your searches of layouts, newest first, without their results.",
        get="A search of layouts: its progress, the best layout so far, and when it is done "
        "its result.",
        cancel="Call a search of layouts off; one that has ended stays as it is.",
        finish="Stop a search and keep what it has: within seconds it is done, with the best so "
        "far as its result, or with the first that it finds.",
        delete="Delete a search that has ended, with its result and files.",
    ),
)  # fmt: skip


@routes.route("GET", "/v1/layouts/{job_id}/plan", scope="read", returns=PlanAnswer)
async def get_layout_plan(
    request: Request, caller: Me, job_id: JobId, to: To = None, of: Of = None
) -> Response:
    """The plan of the best layout of a search that is done, as a plan file. With `to`: what makes a
    framework run it, whose `text` a shell can source.
    """
    return await plan_response(request, caller, "layout", job_id, to, of)


@routes.route("GET", "/v1/layouts/{job_id}/report", scope="read", media_type="text/html")
async def get_layout_report(request: Request, caller: Me, job_id: JobId) -> Response:
    """The page of a search of layouts that is done; it needs no other files."""
    return await report_response(request, caller, "layout", job_id)


@routes.route("GET", "/v1/layouts/{job_id}/trace", scope="read", returns=Trace)
async def get_layout_trace(request: Request, caller: Me, job_id: JobId) -> Response:
    """The timelines of the best layout of a search that is done, as a Chrome trace for Perfetto."""
    return await trace_response(request, caller, "layout", job_id)
