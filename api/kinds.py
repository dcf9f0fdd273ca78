"""The kinds of jobs as the API has them. A new kind is an entry here, one in
``domino_tune.service.work.kinds`` unless it has its result already, and its body and result in
``api.schemas``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from api.body import read_object, validated
from api.generate import Wire
from api.parts import Parts
from api.problems import bad_body
from api.schemas import JOB_BODIES
from api.tasks import calibration_task, task_of
from api.validations import new_validation
from domino_tune.requests.service import JobKind, Scope
from domino_tune.service.jobs import NewJob
from domino_tune.service.work.task import Task


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``new`` makes the job that a body asks for, for an owner. It blocks, and raises
    DominoTuneError and ProblemError. ``scope``: what the caller needs for one."""

    new: Callable[[Any, Parts, str], NewJob]
    scope: Scope = "tune"


def _verb(kind: JobKind) -> Kind:
    """Return the kind of a job that does what a verb does."""

    def new(body: Wire, parts: Parts, owner: str) -> NewJob:
        return _job(kind, owner, _shown(body), task_of(kind, body, parts.library))

    return Kind(new=new)


def _calibration(body: Any, parts: Parts, owner: str) -> NewJob:
    task = calibration_task(body, parts.library)
    shown = {"profile": body.profile, "name": body.name, "runs": len(task.request["runs"])}
    return _job("calibrate", owner, shown, task)


def _job(kind: JobKind, owner: str, shown: Mapping[str, Any], task: Task) -> NewJob:
    return NewJob(kind=kind, owner=owner, request=shown, task=task.to_bytes())


def _shown(body: Wire) -> dict[str, Any]:
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


def read_job(data: bytes) -> Wire:
    """Return what asks for a job of the kind that the body names. Raise ProblemError."""
    plain = read_object(data)
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise bad_body(
            f"`kind` says what is asked for: one of {', '.join(KINDS)}.", place=("kind",)
        )
    return validated(JOB_BODIES[cast(JobKind, kind)], data, plain)
