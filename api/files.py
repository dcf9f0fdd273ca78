"""Files of searches that are done, tunes and searches of layouts alike: plan, page, timeline."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Caller
from api.jobs import find_job, json_response
from api.wire import REPORT_CSP, in_thread, parts_of
from domino_tune.results.json_form import to_json
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs.job import JobKind
from domino_tune.service.jobs.leases import PROFILE
from domino_tune.store.plans import plan_from_json
from domino_tune.store.shelf import Shelf
from domino_tune.verbs.plan import export_plan, export_text
from simulator.plan import Compared

To = Annotated[
    Literal["megatron", "deepspeed", "env", "te-userbuffers", "torchtitan", "nemo"] | None,
    Query(description="For this framework; none: the plan file itself."),
]

Of = Annotated[
    Compared | None,
    Query(description="The plan of this strategy of the verdict; none: the best plan."),
]


async def plan_response(
    request: Request, caller: Caller, kind: JobKind, job_id: str, to: str | None, of: str | None
) -> Response:
    """Answer with the best plan, or that of the strategy ``of``, as a plan file, or as what makes
    the framework ``to`` run it.

    Raise NotFoundError, and as ``export_plan`` does.
    """
    data = await _artifact(request, caller, kind, job_id, "plan")
    if of not in (None, json.loads(data)["plan"]["strategy"]):
        data = await _artifact(request, caller, kind, job_id, f"plan-{of}")
    if to is None:
        return json_response(data)
    shelf = parts_of(request).library.shelf()
    return json_response(await in_thread(_exported, data, to, shelf))


async def report_response(request: Request, caller: Caller, kind: JobKind, job_id: str) -> Response:
    """Answer with the page, with everything inside. Raise NotFoundError."""
    data = await _artifact(request, caller, kind, job_id, "report")
    return Response(
        data, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": REPORT_CSP}
    )


async def trace_response(request: Request, caller: Caller, kind: JobKind, job_id: str) -> Response:
    """Answer with the timelines, as a Chrome trace. Raise NotFoundError."""
    return json_response(await _artifact(request, caller, kind, job_id, "trace"))


async def profile_response(
    request: Request, caller: Caller, kind: JobKind, job_id: str
) -> Response:
    """Answer with the profile that a job made. Raise NotFoundError."""
    return json_response(await _artifact(request, caller, kind, job_id, PROFILE))


async def _artifact(
    request: Request, caller: Caller, kind: JobKind, job_id: str, name: str
) -> bytes:
    job = await find_job(request, caller, kind, job_id)
    return await in_thread(parts_of(request).jobs.artifact, job.id, name)


def _exported(data: bytes, to: str, shelf: Shelf) -> bytes:
    made = export_plan(plan_from_json(json.loads(data), source="The job's plan"), to, shelf=shelf)
    return json_bytes({**to_json(made), "text": export_text(made)})
