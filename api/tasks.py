"""From a body to the task that is computed: names looked up, bounds checked, everything pinned."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request

from api.auth import Caller
from api.bounds import MOST_OPS, MOST_OPS_AT_ONCE, check_setup
from api.generate import Wire, to_request
from api.wire import in_thread, parts_of, run_quick
from domino_tune.requests import PlanFields, TuneRequest, WhatIfRequest, WorkloadFields
from domino_tune.service.job import JobKind, NewJob
from domino_tune.service.library import Library
from domino_tune.service.lru_cache import Recent
from domino_tune.service.task import REQUESTS, Task, digest, dump
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.verbs.resolve import plan_of, resolve
from domino_tune.verbs.whatif import parse_changes, parse_sweep
from simulator.case import Case

KNOWN_BYTES: Final = 8 << 20
_KNOWN: Final[Recent[bytes]] = Recent(KNOWN_BYTES, len)
"""Tasks by what was asked and the contents that its names stood for."""


async def new_job(request: Request, caller: Caller, kind: JobKind, body: Wire) -> NewJob:
    """The job that ``body`` asks for. Raises InputError, PlanFileError and ProblemError."""
    task = await in_thread(task_bytes, kind, body, parts_of(request).library)
    return NewJob(kind=kind, owner=caller.owner, request=_shown(body), task=task)


async def answer_at_once(request: Request, kind: str, body: Wire) -> bytes:
    """The result's JSON, computed or known. Raises as the service does, and ProblemError."""
    task = await in_thread(task_bytes, kind, body, parts_of(request).library)
    return await run_quick(request, kind, task)


def task_bytes(kind: str, body: Wire, library: Library) -> bytes:
    """The task, with all that its names lead to now."""
    return _KNOWN.get(_key(kind, body, library), lambda: _task(kind, body, library).to_bytes())


def _task(kind: str, body: Wire, library: Library) -> Task:
    request = to_request(body, REQUESTS[kind])
    plan_file = _plan_file(body)
    shelf = library.shelf()
    _check(kind, request, plan_file, library)
    return Task.of(kind, request, shelf, plan_file)


def _key(kind: str, body: Wire, library: Library) -> str:
    """Of what a task is made; where something is missing, that is for ``_task`` to say."""
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
    return digest(dump(parts))


def _plan_file(body: Wire) -> PlanFile | None:
    plan: dict[str, Any] | None = getattr(body, "plan", None)
    return None if plan is None else plan_from_json(plan, source="plan")


def _check(
    kind: str, request: WorkloadFields, plan_file: PlanFile | None, library: Library
) -> None:
    """Refuse what would take too long, before anything is built from it."""
    case = resolve(request, plan_file, library.shelf())
    if isinstance(request, TuneRequest):
        check_setup(case, tune_also=request.tune_also)
        check_fits(case)
        return
    assert isinstance(request, PlanFields)
    plan = plan_of(request, plan_file)
    if not isinstance(request, WhatIfRequest):
        check_setup(case, plan, most_ops=MOST_OPS_AT_ONCE)
        return
    parse_changes(request.change)
    parse_sweep(request.sweep)
    searched = None if request.retune else plan
    most = MOST_OPS if kind == "sweep" else MOST_OPS_AT_ONCE
    check_setup(case, searched, changes=request.change, sweep=request.sweep, most_ops=most)
    check_fits(case)


def check_fits(case: Case) -> None:
    """Refuse now what a job could only fail with: a model that does not shard. Raises InputError.

    Comes behind the bounds: it looks for numbers that would do, among all up to a size.
    """
    _ = case


def _shown(body: Wire) -> dict[str, Any]:
    """The request as the job tells it: what was given, a plan file by its checksum."""
    given = body.model_dump(exclude_defaults=True)
    if "plan" in given:
        given["plan"] = {"checksum": given["plan"].get("checksum")}
    return given
