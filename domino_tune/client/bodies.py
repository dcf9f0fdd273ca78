"""Requests as JSON bodies: fields by the command line's names; fields at their default left out."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from domino_tune.client.jobs import Asked
from domino_tune.requests import (
    CalibrateRequest,
    PlanFields,
    ProfilesImportRequest,
    Request,
    WhatIfRequest,
)
from domino_tune.requests.options import by_field, flag_of
from domino_tune.requests.verbs import QUESTIONS
from domino_tune.store.files import read_text
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import LABEL, MEASURED, NOTE, ROUNDING, read_runs
from domino_tune.store.plans import load_plan
from simulator.errors import InputError, unknown_name

NAMES: Final = {"model": "models", "profile": "profiles", "into": "profiles"}
"""Fields that hold names, each with the list that a server has of them."""


def job_body(kind: str, request: Asked) -> bytes:
    """Return the body that asks for a job. Raise InputError for options that a server cannot
    follow, and for another request than the kind's."""
    if kind not in FIELDS:
        raise unknown_name("kind of job", kind, FIELDS)
    wanted = QUESTIONS[kind]
    if not isinstance(request, wanted):
        raise InputError(f"A {kind} asks a {wanted.__name__}, got a {type(request).__name__}.")
    return _encoded({"kind": kind, **FIELDS[kind](request)})


def _given(request: Request) -> dict[str, Any]:
    """Return the fields that are not at their default. Raise InputError for a file in place of a
    name."""
    given = request.given()
    for name, listed in NAMES.items():
        text = given.get(name)
        if text and (os.sep in text or text.endswith(".json")):
            raise InputError(
                f"{flag_of(type(request), name)} {text!r} is a file; a server takes the names that "
                f"it lists under /v1/{listed}."
            )
    return given


def _plan(request: PlanFields) -> dict[str, Any]:
    given = _given(request)
    if request.plan:
        given["plan"] = load_plan(request.plan).to_json()
    return given


def plan_body(request: PlanFields) -> bytes:
    """Return the body of a simulation, with the content of the plan file.

    Raise PlanFileError for a bad plan file.
    """
    return _encoded(_plan(request))


def whatif_body(request: WhatIfRequest) -> bytes:
    """Return the body of a what-if. Raise InputError for one that is a sweep."""
    if request.sweep is not None or request.retune:
        raise InputError("--sweep and --retune take a while: ask for a job of kind `whatif`.")
    return plan_body(request)


def _calibration(request: CalibrateRequest) -> dict[str, Any]:
    """Return the fields of a calibration, with the runs of its files as a table.

    Raise InputError for files that cannot be read, and for a profile that is a file.
    """
    _given(request)
    rows = read_runs(read_text(request.runs), request.runs) if request.runs else []
    rows += [read_megatron_log(read_text(path), Path(path).name) for path in request.megatron_log]
    cells = [
        {
            LABEL: row.label, MEASURED: repr(row.measured_ms), ROUNDING: repr(row.rounding_ms),
            NOTE: row.note, **by_field(row.options),
        }
        for row in rows
    ]  # fmt: skip
    table = io.StringIO()
    columns = list(dict.fromkeys(name for row in cells for name in row))
    writer = csv.DictWriter(table, columns or [MEASURED], restval="")
    writer.writeheader()
    writer.writerows(cells)
    return {"profile": request.profile, "name": request.name, "runs": table.getvalue()}


FIELDS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "tune": _given, "layout": _given, "scale": _given, "whatif": _plan, "calibrate": _calibration,
}  # fmt: skip
"""What makes the fields of each kind of job, which is named as the verb that asks the same."""


def import_query(request: ProfilesImportRequest) -> str:
    """Return the query of an import: all options but the file and the new name."""
    given = _given(request)
    return urlencode({name: one for name, one in given.items() if name not in ("file", "name")})


def _encoded(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
