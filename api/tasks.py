"""Turn a body into the task to compute: look up what it names, and pin that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from starlette.requests import Request

from api.auth import Caller
from api.generate import Wire
from api.problems import ProblemError, bad_body, pointer
from api.wire import in_thread, parts_of
from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import MOST_ENTRIES
from domino_tune.service.library import Library
from domino_tune.service.work.task import Task
from domino_tune.store.formats.run_table import read_runs
from domino_tune.store.shelf import LoadedModel
from domino_tune.verbs.calibrate import LEAST_RUNS, USUAL, AskedRun, asked_in
from simulator.errors import DominoTuneError

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
            models[body.model] = _model(library, body.model)
    with _placed("profile"):
        profile = library.file(named) if isinstance(named, str) else b""
    return Task(
        kind=kind,
        request=body.model_dump(exclude={"kind", "plan"}),
        plan=plan,
        models=models,
        profile=profile,
    )


async def answer_at_once(request: Request, caller: Caller, kind: str, body: Wire) -> bytes:
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
    """Return the task of a CalibrationBody. Raise InputError, ProblemError, and ConflictError if
    the name is taken."""
    library.check_calibrated(body.name, body.profile)
    runs, models = _runs(body), {}
    for index, run in enumerate(runs):
        name = run.request.model or ""
        if name not in models:
            with _placed("runs", *([] if isinstance(body.runs, str) else [index])):
                models[name] = _model(library, name)
    request = {
        "name": body.name, "listed": not isinstance(body.runs, str),
        "runs": [{**vars(one), "request": one.request.model_dump()} for one in runs],
    }  # fmt: skip
    return Task(
        kind="calibrate", request=request, models=models, profile=library.file(body.profile)
    )


def _model(library: Library, name: str) -> LoadedModel:
    found = library.model(name)
    return LoadedModel(spec=found.spec, notes=found.notes)


def _runs(body: Any) -> list[AskedRun]:
    if not isinstance(body.runs, str):
        return [_asked(run, number, body.profile) for number, run in enumerate(body.runs)]
    with _placed("runs"):
        rows = read_runs(body.runs, "runs")
        if not LEAST_RUNS <= len(rows) <= MOST_ENTRIES:
            raise bad_body(
                f"There are {len(rows)} runs; give {LEAST_RUNS} to {MOST_ENTRIES}.",
                place=("runs",),
            )
        return [asked_in(row, body.profile) for row in rows]


def _asked(run: Wire, number: int, profile: str) -> AskedRun:
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
