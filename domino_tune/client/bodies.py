"""Requests as JSON bodies: fields by the command line's names; fields at their default left out."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from domino_tune.client.jobs import Asked
from domino_tune.requests import (
    CalibrateRequest,
    PlanFields,
    ProfilesImportRequest,
    Request,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.requests.from_text import by_field
from domino_tune.requests.options import option_of
from domino_tune.requests.verbs import (
    LAYOUT_FIELDS,
    LAYOUTS_NOT_SERVED,
    NOT_OF_LAYOUTS,
    NOT_SERVED,
    SCALE_NOT_SERVED,
)
from domino_tune.store.files import read_text
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.store.formats.run_table import LABEL, MEASURED, NOTE, ROUNDING, read_runs
from domino_tune.store.plans import load_plan
from simulator.errors import InputError, unknown_name

NAMES: Final = {"model": "models", "profile": "profiles", "into": "profiles"}
"""Fields that hold names, each with the list that a server has of them."""
NO_RANKS: Final = "a server starts no ranks"


def job_body(kind: str, request: Asked) -> bytes:
    """Return the body that asks for a job. Raise InputError for options that a server cannot
    follow, and for another request than the kind's."""
    if kind not in KINDS:
        raise unknown_name("kind of job", kind, KINDS)
    wanted, given = KINDS[kind]
    if not isinstance(request, wanted):
        raise InputError(f"A {kind} asks a {wanted.__name__}, got a {type(request).__name__}.")
    return _encoded({"kind": kind, **given(request)})


def _tune(request: TuneRequest) -> dict[str, Any]:
    _given(request, without=("sweep",), why="that asks for many numbers of GPUs: kind `scale`")
    _given(request, without=LAYOUT_FIELDS, why="that asks for layouts: kind `layout`")
    return _given(request, without=NOT_SERVED, why=NO_RANKS)


def _layout(request: TuneRequest) -> dict[str, Any]:
    _given(request, without=NOT_OF_LAYOUTS, why="with --gpus the layout is searched")
    _given(request, without=("sweep",), why="that asks for many numbers of GPUs: kind `scale`")
    return _given(request, without=LAYOUTS_NOT_SERVED, why=NO_RANKS)


def _scale(request: TuneRequest) -> dict[str, Any]:
    _given(request, without=NOT_OF_LAYOUTS, why="with --sweep the layout is searched")
    _given(request, without=("gpus",), why="--sweep has the numbers of GPUs")
    return _given(request, without=SCALE_NOT_SERVED, why=NO_RANKS)


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
    _given(request, without=("sweep", "retune"), why="that takes a while: ask for a sweep")
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


KINDS: Final[Mapping[str, tuple[type[Request], Callable[[Any], dict[str, Any]]]]] = {
    "tune": (TuneRequest, _tune),
    "layout": (TuneRequest, _layout),
    "scale": (TuneRequest, _scale),
    "sweep": (WhatIfRequest, _plan),
    "calibration": (CalibrateRequest, _calibration),
}
"""The request of each kind of job, and what makes its fields."""


def import_query(request: ProfilesImportRequest) -> str:
    """Return the query of an import: all options but the file and the new name."""
    given = _given(request)
    return urlencode({name: one for name, one in given.items() if name not in ("file", "name")})


def _given(request: Request, *, without: Collection[str] = (), why: str = "") -> dict[str, Any]:
    """Return the fields that are not at their default. Raise InputError for any in ``without``."""
    given = {item.name: item for item in fields(request) if _is_given(request, item)}
    refused = [option_of(given[name]).flag for name in without if name in given]
    if refused:
        raise InputError(f"{', '.join(refused)} cannot be asked of a server: {why}.")
    for name, listed in NAMES.items():
        text = getattr(request, name, None)
        if text and (os.sep in text or text.endswith(".json")):
            raise InputError(
                f"{option_of(given[name]).flag} {text!r} is a file; a server takes the names that "
                f"it lists under /v1/{listed}."
            )
    return {name: getattr(request, name) for name in given}


def _is_given(request: Request, item: Field[Any]) -> bool:
    return item.default is MISSING or getattr(request, item.name) != item.default


def _encoded(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
