"""Tunes: jobs that find the best plan."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.files import Of, To, plan_response, report_response, trace_response
from api.job_schemas import Tune
from api.routes.of_jobs import Nouns, Texts, job_routes
from api.schemas import PlanAnswer, Trace, TuneBody
from api.wire import JobId, Me

routes: Final = job_routes(
    "tune", "tunes", TuneBody, Tune, Nouns("tune", "tunes"),
    Texts(
        create="Find the best plan: a job, whose progress and result are at its Location.\n\nWith "
        "`Prefer: wait=10` the answer is 200 with the tune where it ends within 10 "
        "seconds.",
        list="Your tunes, newest first, without their results.",
        get="A tune: its progress, the best plan so far, and when it is done its result.",
        cancel="Call a tune off; one that has ended stays as it is.",
        finish="Stop a tune and keep what it has: within seconds it is done, with the best so "
        "far as its result, or with the first that it finds.",
        delete="Delete a tune that has ended, with its result, files and validations.",
    ),
)  # fmt: skip


@routes.route("GET", "/v1/tunes/{job_id}/plan", scope="read", returns=PlanAnswer)
async def get_tune_plan(
    request: Request, caller: Me, job_id: JobId, to: To = None, of: Of = None
) -> Response:
    """The best plan of a tune that is done, as a plan file; with `to` what makes a framework run
    it, whose `text` is for a shell to source."""
    return await plan_response(request, caller, "tune", job_id, to, of)


@routes.route("GET", "/v1/tunes/{job_id}/report", scope="read", media_type="text/html")
async def get_tune_report(request: Request, caller: Me, job_id: JobId) -> Response:
    """The page of a tune that is done, with everything inside."""
    return await report_response(request, caller, "tune", job_id)


@routes.route("GET", "/v1/tunes/{job_id}/trace", scope="read", returns=Trace)
async def get_tune_trace(request: Request, caller: Me, job_id: JobId) -> Response:
    """The timelines of a tune that is done, as a Chrome trace for Perfetto."""
    return await trace_response(request, caller, "tune", job_id)
