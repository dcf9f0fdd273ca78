"""Turn a body into the task to compute: look up names, check bounds, pin everything."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached
from starlette.requests import Request

from api.auth import Caller
from api.bounds import MOST_OPS, MOST_OPS_AT_ONCE, check_layouts, check_setup
from api.calibrations import new_calibration
from api.generate import Wire, to_request
from api.wire import in_thread, parts_of, run_quick
from domino_tune.requests import PlanFields, TuneRequest, WhatIfRequest, WorkloadFields
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.jobs.job import JobKind, NewJob
from domino_tune.service.library import Library
from domino_tune.service.tasks.calibration import KIND as CALIBRATION
from domino_tune.service.tasks.task import REQUESTS, Task, case_of
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.verbs.layouts import check_may_fit
from domino_tune.verbs.resolve import plan_of
from domino_tune.verbs.tune import cases_to_tune, check_some_may_fit
from domino_tune.verbs.whatif import parse_changes, parse_sweep
from simulator.errors import DominoTuneError

STORED_BYTES: Final = 8 << 20
"""Size of the tasks that are stored."""


async def new_job(request: Request, caller: Caller, kind: JobKind, body: Wire) -> NewJob:
    """Return the job that ``body`` asks for. Raise InputError, PlanFileError, ConflictError and
    ProblemError."""
    library = parts_of(request).library
    if kind == CALIBRATION:
        return await in_thread(new_calibration, body, library, caller.owner)
    task = await in_thread(task_bytes, kind, body, library)
    return NewJob(kind=kind, owner=caller.owner, request=_shown(body), task=task)


async def answer_at_once(request: Request, kind: str, body: Wire) -> bytes:
    """Return the result's JSON, computed or stored. Raise as the verbs do, and ProblemError."""
    task = await in_thread(task_bytes, kind, body, parts_of(request).library)
    return await run_quick(request, kind, task)


def _key(kind: str, body: Wire, library: Library) -> str:
    """Return a digest of all that makes a task; ``task_bytes`` reports what is missing."""
    plain = body.model_dump()
    plan = plain.get("plan") or {}
    made_on = plan.get("profile")
    named = made_on.get("name") if isinstance(made_on, dict) else None
    profile, model = plain["profile"] or named, plain["model"]
    parts: dict[str, Any] = {"kind": kind, "body": plain}
    if isinstance(profile, str):
        parts["profile"] = library.profile(profile).content_id
    if model is not None:
        found: LoadedModel = library.shelf().model(model)
        parts["model"] = [repr(found.spec), list(found.notes)]
    return sha256_hex(json_bytes(parts))


@cached(LRUCache(STORED_BYTES, len), key=_key, lock=Lock())
def task_bytes(kind: str, body: Wire, library: Library) -> bytes:
    """Return the task with the present contents of all that it names."""
    request = to_request(body, REQUESTS[kind])
    plan_file = _plan_file(body)
    _check(kind, request, plan_file, library)
    return Task.of(kind, request, library.shelf(), plan_file).to_bytes()


def _plan_file(body: Wire) -> PlanFile | None:
    plan: dict[str, Any] | None = getattr(body, "plan", None)
    try:
        return None if plan is None else plan_from_json(plan, source="plan")
    except DominoTuneError as error:
        raise error.at("plan", *(error.place or ())) from None


def _check(
    kind: str, request: WorkloadFields, plan_file: PlanFile | None, library: Library
) -> None:
    """Refuse what would take too long, or cannot fit, before anything is built from it."""
    case = case_of(kind, request, plan_file, library.shelf())
    if isinstance(request, TuneRequest):
        if kind == "layout":
            check_layouts(case, request)
            check_may_fit(case, request)
        else:
            check_setup(case, tune_also=request.tune_also)
            check_some_may_fit(cases_to_tune(case, request.tune_also))
        return
    assert isinstance(request, PlanFields)
    plan = plan_of(request, plan_file, case)
    if not isinstance(request, WhatIfRequest):
        check_setup(case, plan, most_ops=MOST_OPS_AT_ONCE)
        return
    parse_changes(request.change)
    parse_sweep(request.sweep)
    searched = None if request.retune else plan
    most = MOST_OPS if kind == "sweep" else MOST_OPS_AT_ONCE
    check_setup(case, searched, changes=request.change, sweep=request.sweep, most_ops=most)


def _shown(body: Wire) -> dict[str, Any]:
    """Return the request as the job shows it: what was given, a plan file by its checksum."""
    given = body.model_dump(exclude_defaults=True)
    if "plan" in given:
        given["plan"] = {"checksum": given["plan"].get("checksum")}
    return given
