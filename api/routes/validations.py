"""Validations: what a cluster measured with a tune's plan, next to the prediction."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from api.job_schemas import Validation, ValidationPage
from api.jobs import Cursor, find_job, idempotency, json_response, page, rfc3339
from api.problems import bad_body
from api.schemas import ValidationBody
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of, in_thread, parts_of
from domino_tune.base.errors import ConflictError
from domino_tune.service.encoding import json_bytes
from domino_tune.service.jobs.measurements import MAX_LIMIT
from domino_tune.service.jobs.measurements import Validation as StoredValidation
from simulator.usable import SURE

routes: Final = Routes("validations")
SAME: Final = ("model", "workload", "cluster")
"""Fields that must be the same in a measurement and in the tune."""
ValidationId = Annotated[str, Path(pattern=r"^val_[0-9a-f]{32}$", description="A validation.")]
LARGEST: Final = 1e9
"""The largest number that a plan may have: as milliseconds, eleven days."""
STEPS: Final = ("iteration_ms", "makespans_ms")
"""Times of whole steps."""
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most entries of a page.")]


@routes.route(
    "POST", "/v1/tunes/{job_id}/validations", scope="tune", status=201, returns=Validation,
    also={200: Validation}, problems=(409,),
)  # fmt: skip
async def add_validation(
    request: Request,
    caller: Me,
    job_id: JobId,
    idempotency_key: IdempotencyKey = None,
    body: Any = body_of(ValidationBody),
) -> Response:
    """Report what `validate --json` printed for the tune's plan; it is stored before the answer is
    sent.
    """
    parts = parts_of(request)
    job = await find_job(request, caller, "tune", job_id)
    if job.state != "done":
        raise ConflictError(f"The tune is {job.state}: there is no plan that could be measured.")
    tuned = await in_thread(lambda: _tuned(parts.jobs.result(job.id)))
    plain = body.model_dump(mode="json")
    _check(plain, tuned)
    stored, created = await in_thread(
        parts.measurements.add,
        job.id,
        json_bytes(plain),
        idempotency(request, caller, idempotency_key),
    )
    path = f"{request.url.path}?limit=1"
    return json_response(
        json_bytes(_beside(stored, tuned)),
        status=201 if created else 200,
        headers={"Location": path},
    )


@routes.route(
    "GET", "/v1/tunes/{job_id}/validations", scope="read", returns=ValidationPage
)  # fmt: skip
async def list_validations(
    request: Request, caller: Me, job_id: JobId, cursor: Cursor = None, limit: Limit = MAX_LIMIT
) -> Response:
    """What was measured with the tune's plan, oldest first, next to what was predicted."""
    parts = parts_of(request)
    job = await find_job(request, caller, "tune", job_id)
    stored, following = await in_thread(parts.measurements.page, job.id, cursor, limit)
    tuned = await in_thread(lambda: _tuned(parts.jobs.result(job.id))) if stored else {}
    return page([_beside(one, tuned) for one in stored], following)


@routes.route("DELETE", "/v1/tunes/{job_id}/validations/{validation_id}", scope="tune", status=204)
async def delete_validation(
    request: Request, caller: Me, job_id: JobId, validation_id: ValidationId
) -> Response:
    """Delete a validation."""
    parts = parts_of(request)
    job = await find_job(request, caller, "tune", job_id)
    await in_thread(parts.measurements.delete, job.id, validation_id)
    return Response(status_code=204)


def _tuned(result: bytes) -> dict[str, Any]:
    """Return the full simulation of a tune's best plan, as JSON."""
    found: dict[str, Any] = json.loads(result)["simulation"]
    return found


def _check(measured: dict[str, Any], tuned: dict[str, Any]) -> None:
    """Raise ProblemError 422 unless the tune's own plan was measured, on the tune's own case, with
    plausible numbers.

    The kernels may differ: plans run with those of the runtime.
    """
    for name in SAME:
        if {**measured[name], "implementation": None} != {**tuned[name], "implementation": None}:
            raise bad_body(f"The {name} is not the tune's.", place=(name,))
    for index, one in enumerate(measured["plans"]):
        _check_numbers(one, ("plans", index))
    if not any(one["plan"] in _plans(tuned) for one in measured["plans"]):
        labels = " or ".join(dict.fromkeys(plan["label"] for plan in _plans(tuned)))
        raise bad_body(f"None of the plans is the tune's, {labels}.", place=("plans",))


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


def _beside(stored: StoredValidation, tuned: dict[str, Any]) -> dict[str, Any]:
    """Return a report: each plan's predicted and measured time, then the whole body that
    was sent.
    """
    result = json.loads(stored.body)
    return {
        "id": stored.id,
        "created": rfc3339(stored.created_s),
        "plans": [_compared(one, tuned) for one in result["plans"]],
        "result": result,
    }


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
