"""Validations: jobs that hold what a cluster measured with a tune's plan, beside the prediction."""

from __future__ import annotations

import json
from typing import Any, Final

from api.problems import bad_body
from domino_tune.base.errors import ConflictError
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from simulator.usable import SURE

SAME: Final = ("model", "workload", "cluster")
"""Fields that must be the same in a measurement and in the tune."""
LARGEST: Final = 1e9
"""The largest number that a plan may have: as milliseconds, eleven days."""
STEPS: Final = ("iteration_ms", "makespans_ms")
"""Times of whole steps."""


def new_validation(body: Any, jobs: JobDesk, owner: str) -> NewJob:
    """Return the job of a ValidationBody, which is done as soon as it is stored.

    Raise NotFoundError for another's tune, ConflictError for one that is not done, and ProblemError
    for results of something else.
    """
    job = jobs.get(body.of, owner)
    if job.kind != "tune":
        raise ConflictError(f"The job is a {job.kind}; what is measured is the plan of a tune.")
    if job.state != "done":
        raise ConflictError(f"The tune is {job.state}: there is no plan that could be measured.")
    tuned = json.loads(jobs.result(job.id))["simulation"]
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
