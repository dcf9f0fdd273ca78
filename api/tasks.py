"""Turn a body into the task to compute: look up names, check bounds, pin everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached
from starlette.requests import Request

from api.bounds import MOST_OPS, MOST_OPS_AT_ONCE, check_layouts, check_setup
from api.generate import Wire, to_request
from api.problems import ProblemError
from api.wire import in_thread, parts_of, run_quick
from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest
from domino_tune.search.simulated import check_target
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.jobs.job import JobKind, NewJob
from domino_tune.service.library import Library
from domino_tune.service.tasks.task import ASKED, Task
from domino_tune.store.models import LoadedModel
from domino_tune.store.plans import PlanFile, plan_from_json
from domino_tune.store.shelf import Shelf
from domino_tune.verbs.layouts import base_of
from domino_tune.verbs.resolve import plan_of, resolve
from domino_tune.verbs.scale import no_layout, requests_of
from domino_tune.verbs.whatif import parse_changes, parse_sweep
from simulator.errors import DominoTuneError

STORED_BYTES: Final = 2 << 20
"""Size of the tasks that are stored, so that a request that comes again and again is not checked
anew: a hundred on a bundled profile."""


def new_search(kind: JobKind, body: Wire, library: Library, owner: str) -> NewJob:
    """Return the job that ``body`` asks for: what a verb does. Raise InputError, PlanFileError and
    ProblemError."""
    task = task_bytes(kind, body, library)
    return NewJob(kind=kind, owner=owner, request=_shown(body), task=task)


async def answer_at_once(request: Request, kind: str, body: Wire) -> bytes:
    """Return the result's JSON, computed or stored. Raise as the verbs do, and ProblemError."""
    task = await in_thread(task_bytes, kind, body, parts_of(request).library)
    return await run_quick(request, kind, task)


async def check_fits(request: Request, task: bytes) -> None:
    """Raise the error of a search that nothing fits, with what would, as a worker finds it. Where
    no worker has the time, the job itself will tell."""
    with suppress(ProblemError):
        await run_quick(request, "fits", task)


def _key(kind: str, body: Wire, library: Library) -> str:
    """Return a digest of all that makes a task; ``task_bytes`` reports what is missing."""
    plain = body.model_dump()
    plan = plain.get("plan") or {}
    made_on = plan.get("profile")
    named = made_on.get("name") if isinstance(made_on, dict) else None
    profile, model = plain["profile"] or named, plain["model"]
    parts: dict[str, Any] = {"kind": kind, "body": plain}
    if isinstance(profile, str):
        parts["profile"] = library.content_id(profile)
    if model is not None:
        found: LoadedModel = library.shelf().model(model)
        parts["model"] = [repr(found.spec), list(found.notes)]
    return sha256_hex(json_bytes(parts))


@cached(LRUCache(STORED_BYTES, len), key=_key, lock=Lock())
def task_bytes(kind: str, body: Wire, library: Library) -> bytes:
    """Return the task with the present contents of all that it names."""
    request, shelf = to_request(body, ASKED[kind].request), library.shelf()
    plan_file = _plan_file(body)
    CHECKS[kind](request, plan_file, shelf)
    return Task.of(kind, request, shelf, plan_file).to_bytes()


def _plan_file(body: Wire) -> PlanFile | None:
    plan: dict[str, Any] | None = getattr(body, "plan", None)
    try:
        return None if plan is None else plan_from_json(plan, source="plan")
    except DominoTuneError as error:
        raise error.at("plan", *(error.place or ())) from None


def _check_tune(request: TuneRequest, plan_file: None, shelf: Shelf) -> None:
    case = resolve(request, shelf=shelf)
    check_setup(case, tune_also=request.tune_also)
    check_target(case, request.target)


def _check_layouts(request: TuneRequest, plan_file: None, shelf: Shelf) -> None:
    case = base_of(request, shelf)
    check_layouts(case, request)


def _check_scale(request: TuneRequest, plan_file: None, shelf: Shelf) -> None:
    """Refuse what ``_check_layouts`` refuses at every number of GPUs, or takes too long at one."""
    errors: dict[str, DominoTuneError] = {}
    some = False
    for asked in requests_of(request):
        try:
            _check_layouts(asked, None, shelf)
            some = True
        except DominoTuneError as error:
            errors[str(error)] = error
    if not some:
        raise no_layout(errors)


def _check_simulation(request: SimulateRequest, plan_file: PlanFile | None, shelf: Shelf) -> None:
    case = resolve(request, plan_file, shelf)
    check_setup(case, plan_of(request, plan_file, case), most_ops=MOST_OPS_AT_ONCE)


def _check_what_if(
    request: WhatIfRequest, plan_file: PlanFile | None, shelf: Shelf, most_ops: int
) -> None:
    case = resolve(request, plan_file, shelf)
    plan = plan_of(request, plan_file, case)
    parse_changes(request.change)
    parse_sweep(request.sweep)
    searched = None if request.retune else plan
    check_setup(case, searched, changes=request.change, sweep=request.sweep, most_ops=most_ops)


CHECKS: Final[Mapping[str, Callable[[Any, Any, Shelf], None]]] = {
    "tune": _check_tune,
    "layout": _check_layouts,
    "scale": _check_scale,
    "sweep": partial(_check_what_if, most_ops=MOST_OPS),
    "simulate": _check_simulation,
    "whatif": partial(_check_what_if, most_ops=MOST_OPS_AT_ONCE),
}
"""What refuses, for each kind of task, a request that would take too long, before anything is built
from it: called with the request, its plan file, if any, and the shelf. Whether it fits the memory,
and what else would, takes a worker (``check_fits``)."""


def _shown(body: Wire) -> dict[str, Any]:
    """Return the request as the job shows it: what was given, a plan file by its checksum and what
    it was made for."""
    given = body.model_dump(exclude_defaults=True)
    if plan := given.get("plan"):
        made_for = {name: plan[name]["name"] for name in ("model", "profile")}
        given["plan"] = {"checksum": plan["checksum"], **made_for}
    return given
