"""The kinds of jobs as the API has them. A new kind is an entry here, one in
``domino_tune.service.work.kinds`` unless it has its result already, and its body and result in
``api.schemas``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.requests import Request

from api.body import read_object, validated
from api.generate import WireModel
from api.parts import Parts
from api.problems import ProblemError, bad_body, pointer
from api.schemas import JOB_BODIES
from api.wire import Caller, in_thread, parts_of
from domino_tune.base.errors import ConflictError
from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import MOST_ENTRIES
from domino_tune.requests.service import JobKind, Scope
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.library import Library
from domino_tune.service.work.task import Task
from domino_tune.store.formats.run_table import read_runs
from domino_tune.verbs.calibrate import LEAST_RUNS, USUAL, AskedRun, asked_in
from simulator.errors import DominoTuneError
from simulator.usable import SURE

# Turn a body into the task to compute -------------------------------------------------------------
# Look up what it names, and pin that.

TOLD: Final = ("label", "measured_ms", "rounding_ms", "note")
"""Fields of a measured run beside those of its simulation."""


def task_of(kind: str, body: Any, library: Library) -> Task:
    """Return the task of a verb, with the present contents of all that it names. This blocks; it
    reads no profile. Raise InputError."""
    plan: Mapping[str, Any] | None = getattr(body, "plan", None)
    made_on = (plan or {}).get("profile")
    named = body.profile or (made_on.get("name") if isinstance(made_on, dict) else None)
    models = {}
    if body.model is not None:
        with _placed("model"):
            models[body.model] = library.model(body.model)
    with _placed("profile"):
        profile = library.file(named) if isinstance(named, str) else b""
    return Task(
        kind=kind,
        request=body.model_dump(exclude={"kind", "plan"}),
        plan=plan,
        models=models,
        profile=profile,
    )


async def answer_at_once(request: Request, caller: Caller, kind: str, body: WireModel) -> bytes:
    """Return the result's JSON, computed or stored. Raise as the verbs do, and ProblemError."""
    parts = parts_of(request)
    task = await in_thread(task_of, kind, body, parts.library)
    return await parts.quick.answer(caller.owner, kind, task.to_bytes())


async def check(request: Request, caller: Caller, task: bytes) -> None:
    """Raise the error of a job that cannot be, with what could, as a child process finds it. Where
    none has the time, the job itself will tell."""
    with suppress(ProblemError):
        await parts_of(request).quick.answer(caller.owner, "check", task)


def calibration_task(body: Any, library: Library) -> Task:
    """Return the task of a CalibrateBody. Raise InputError, ProblemError, and ConflictError if
    the name is taken."""
    library.check_calibrated(body.name, body.profile)
    runs, models = _runs(body), {}
    for index, run in enumerate(runs):
        name = run.request.model or ""
        if name not in models:
            with _placed("runs", *([] if isinstance(body.runs, str) else [index])):
                models[name] = library.model(name)
    request = {
        "name": body.name, "listed": not isinstance(body.runs, str),
        "runs": [{**vars(one), "request": one.request.model_dump()} for one in runs],
    }  # fmt: skip
    return Task(
        kind="calibrate", request=request, models=models, profile=library.file(body.profile)
    )


def _runs(body: Any) -> list[AskedRun]:
    if not isinstance(body.runs, str):
        return [_asked(run, number, body.profile) for number, run in enumerate(body.runs)]
    with _placed("runs"):
        rows = read_runs(body.runs, "runs")
        if not LEAST_RUNS <= len(rows) <= MOST_ENTRIES:
            raise bad_body(
                f"There are {len(rows)} runs; give {LEAST_RUNS} to {MOST_ENTRIES}.", place=("runs",)
            )
        return [asked_in(row, body.profile) for row in rows]


def _asked(run: WireModel, number: int, profile: str) -> AskedRun:
    told = run.model_dump(include=set(TOLD))
    with _placed("runs", number):
        request = SimulateRequest(**run.model_dump(exclude={*TOLD}))
    request = request.but(profile=profile, strategy=request.strategy or USUAL)
    told |= {"label": told["label"] or f"run {number + 1}", "note": told["note"] or ""}
    return AskedRun(request=request, **told)


@contextmanager
def _placed(*place: str | int) -> Iterator[None]:
    """Prefix the places that errors point at with ``place``."""
    try:
        yield
    except DominoTuneError as error:
        raise error.at(*place) from None
    except ProblemError as error:
        above = pointer(place)
        for index, fault in enumerate(error.faults):
            if fault.pointer is not None and not fault.pointer.startswith(above):
                below = {"pointer": above + fault.pointer.removeprefix("#")}
                error.faults[index] = fault.model_copy(update=below)
        raise


# Validations --------------------------------------------------------------------------------------
# Jobs that hold what a cluster measured with a tune's plan, beside the prediction.

SAME: Final = ("model", "workload", "cluster")
"""Fields that must be the same in a measurement and in the tune."""
LARGEST: Final = 1e9
"""The largest number that a plan may have: as milliseconds, eleven days."""
STEPS: Final = ("iteration_ms", "makespans_ms")
"""Times of whole steps."""


def new_validation(body: Any, jobs: JobDesk, owner: str) -> NewJob:
    """Return the job of a ValidateBody, which is done as soon as it is stored.

    Raise NotFoundError for another's tune, ConflictError for one that is not done, and ProblemError
    for results of something else.
    """
    job = jobs.get(body.of, owner)
    if job.kind != "tune":
        raise ConflictError(f"The job is a {job.kind}; what is measured is the plan of a tune.")
    if job.state != "done":
        raise ConflictError(f"The tune is {job.state}: there is no plan that could be measured.")
    tuned = json.loads(jobs.result(job.id))["best"]
    plain = body.result.model_dump(mode="json")
    _check(plain, tuned)
    result = {"plans": [_compared(one, tuned) for one in plain["plans"]], "measured": plain}
    shown = {"of": body.of, "model": plain["model"]["name"], "plans": len(plain["plans"])}
    return NewJob(kind="validate", owner=owner, request=shown, result=json_bytes(result))


def _check(measured: dict[str, Any], tuned: dict[str, Any]) -> None:
    """Raise ProblemError 422 unless the tune's own plan was measured, on the tune's own case, with
    plausible numbers.

    The kernels may differ: plans run with those of the runtime.
    """
    for name in SAME:
        if {**measured[name], "implementation": None} != {**tuned[name], "implementation": None}:
            raise bad_body(f"The {name} is not the tune's.", place=("result", name))
    for index, one in enumerate(measured["plans"]):
        _check_numbers(one, ("result", "plans", index))
    if not any(one["plan"] in _plans(tuned) for one in measured["plans"]):
        labels = " or ".join(dict.fromkeys(plan["label"] for plan in _plans(tuned)))
        raise bad_body(f"None of the plans is the tune's, {labels}.", place=("result", "plans"))


def _plans(tuned: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the best plan, and the plan that the verdict recommends, which ``--out`` writes."""
    compared = tuned["verdict"]["contestants"] if tuned["verdict"] else ()
    fitting = (one for one in compared if one["fits_chance"] >= SURE)
    leader = max(fitting, key=lambda one: float(one["chance"]), default=tuned)
    return tuned["plan"], leader["plan"]


def _check_numbers(found: Any, place: tuple[str | int, ...], time: str = "") -> None:
    """Raise ProblemError 422 at the first number within ``found`` that nobody can have measured.

    ``time``: the ``_ms`` field that contains ``found``, or empty.
    """
    if isinstance(found, dict | list):
        for part, inner in found.items() if isinstance(found, dict) else enumerate(found):
            named = part if isinstance(part, str) and part.endswith("_ms") else time
            _check_numbers(inner, (*place, part), named)
    elif isinstance(found, int | float):
        if time in STEPS and found <= 0:
            raise bad_body("A step takes some time: this must be above 0 ms.", place=place)
        if not (0 if time else -LARGEST) <= found <= LARGEST:
            low = "0" if time else f"{-LARGEST:g}"
            raise bad_body(f"This must be from {low} to {LARGEST:g}.", place=place)


def _compared(one: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    measured = one["measured"]
    return {
        "name": one["name"],
        "label": one["plan"]["label"],
        "tuned": one["plan"] in _plans(tuned),
        "predicted_ms": one["predicted"]["iteration_ms"],
        "measured_ms": measured and measured["iteration_ms"],
        "error": one["error"],
    }


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``new`` makes the job that a body asks for, for an owner. It blocks, and raises
    DominoTuneError and ProblemError. ``scope``: what the caller needs for one."""

    new: Callable[[Any, Parts, str], NewJob]
    scope: Scope = "tune"


def _verb(kind: JobKind) -> Kind:
    """Return the kind of a job that does what a verb does."""

    def new(body: WireModel, parts: Parts, owner: str) -> NewJob:
        return _job(kind, owner, _shown(body), task_of(kind, body, parts.library))

    return Kind(new=new)


def _calibration(body: Any, parts: Parts, owner: str) -> NewJob:
    task = calibration_task(body, parts.library)
    shown = {"profile": body.profile, "name": body.name, "runs": len(task.request["runs"])}
    return _job("calibrate", owner, shown, task)


def _job(kind: JobKind, owner: str, shown: Mapping[str, Any], task: Task) -> NewJob:
    return NewJob(kind=kind, owner=owner, request=shown, task=task.to_bytes())


def _shown(body: WireModel) -> dict[str, Any]:
    """Return the request as the job shows it: what was given, a plan file by its checksum and what
    it was made for."""
    given = body.model_dump(exclude_defaults=True, exclude={"kind"})
    if plan := given.get("plan"):
        made_for = {
            name: plan[name].get("name")
            for name in ("model", "profile")
            if isinstance(plan.get(name), dict)
        }
        given["plan"] = {"checksum": plan.get("checksum"), **made_for}
    return given


KINDS: Final[Mapping[JobKind, Kind]] = {
    "tune": _verb("tune"),
    "layout": _verb("layout"),
    "scale": _verb("scale"),
    "whatif": _verb("whatif"),
    "calibrate": Kind(new=_calibration, scope="admin"),
    "validate": Kind(new=lambda body, parts, owner: new_validation(body, parts.jobs, owner)),
}


def read_job(data: bytes) -> WireModel:
    """Return what asks for a job of the kind that the body names. Raise ProblemError."""
    plain = read_object(data)
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise bad_body(
            f"`kind` says what is asked for: one of {', '.join(KINDS)}.", place=("kind",)
        )
    return validated(JOB_BODIES[cast(JobKind, kind)], data, plain)
