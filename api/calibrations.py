"""Turn a body with measured runs into the job that fits a profile to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError

from api.body import sentence
from api.bounds import MOST_OPS_AT_ONCE, check_fields, check_setup
from api.generate import MOST_ENTRIES, Wire, to_request
from api.problems import ProblemError, bad_body, pointer
from api.schemas import MeasuredRunBody
from domino_tune.requests import SimulateRequest
from domino_tune.service.jobs.job import NewJob
from domino_tune.service.library import Library
from domino_tune.service.tasks.calibration import CalibrationTask
from domino_tune.store.formats.run_table import RunRow, read_runs
from domino_tune.verbs.calibrate import (
    USUAL,
    AskedRun,
    OneProfile,
    asked_in,
    check_base,
    check_predictable,
    planned,
)
from domino_tune.verbs.measured_runs import LEAST_RUNS, merged_samples
from simulator.errors import DominoTuneError


def new_calibration(body: Any, library: Library, owner: str) -> NewJob:
    """Return the job that a CalibrationBody asks for. Raise InputError, ProblemError, and
    ConflictError if the name is taken.
    """
    profile = library.profile(body.profile)
    check_base(profile)
    library.check_calibrated(body.name, profile.name)
    replace(profile, name=body.name)  # raises for an invalid name
    shelf = library.shelf()
    runs, models = _runs(body), {}
    found = []
    for index, run in enumerate(runs):
        with _placed("runs", *([] if isinstance(body.runs, str) else [index])):
            made = planned(run, OneProfile(profile, shelf))
            check_setup(made.case, made.plan, most_ops=MOST_OPS_AT_ONCE)
            check_predictable(made)
            found.append(made)
            name = run.request.model or ""
            models[name] = shelf.model(name)
    with _placed("runs"):
        merged_samples(found)
    task = CalibrationTask(name=body.name, profile=profile, models=models, runs=tuple(runs))
    shown = {"profile": body.profile, "name": body.name, "runs": len(runs)}
    return NewJob(kind="calibration", owner=owner, request=shown, task=task.to_bytes())


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
        return [_asked(_body_of(row, body.profile), 0, body.profile) for row in rows]


def _body_of(row: RunRow, profile: str) -> Any:
    """Return the row as a JSON body would give it, checked against the same bounds."""
    run = asked_in(row, profile)
    told = ("label", "measured_ms", "rounding_ms", "note")
    given: dict[str, Any] = {name: getattr(run, name) for name in told if getattr(run, name)}
    for item in fields(SimulateRequest):
        value = getattr(run.request, item.name)
        if value != item.default and item.name != "profile":
            given[item.name] = list(value) if isinstance(value, tuple) else value
    try:
        return MeasuredRunBody.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        said = f"{run.label}: {fault['loc'][-1]}: {sentence(fault['msg'])}"
        raise bad_body(said, place=("runs",)) from None


def _asked(run: Wire, number: int, profile: str) -> AskedRun:
    with _placed("runs", number):
        check_fields(run)
    told = run.model_dump(include={"label", "measured_ms", "rounding_ms", "note"})
    request = to_request(run, SimulateRequest, without=tuple(told))
    return AskedRun(
        label=told["label"] or f"run {number + 1}",
        request=replace(request, profile=profile, strategy=request.strategy or USUAL),
        measured_ms=told["measured_ms"],
        rounding_ms=told["rounding_ms"],
        note=told["note"] or "",
    )


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
