"""Requests as JSON bodies: fields by the command line's names; fields at their default left out."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

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
from simulator.errors import InputError

NAMES: Final = {"model": "models", "profile": "profiles", "into": "profiles"}
"""Fields that hold names, each with the list that a server has of them."""
NO_RANKS: Final = "a server starts no ranks"


def tune_body(request: TuneRequest) -> bytes:
    """Return the body of a tune. Raise InputError for options that a server cannot follow."""
    _given(request, without=("sweep",), why="that asks for many numbers of GPUs: call `scale`")
    _given(request, without=LAYOUT_FIELDS, why="that asks for layouts: call `layouts`")
    return _encoded(_given(request, without=NOT_SERVED, why=NO_RANKS))


def layouts_body(request: TuneRequest) -> bytes:
    """Return the body of a search of layouts. Raise InputError for options that it, or a server,
    cannot follow."""
    _given(request, without=NOT_OF_LAYOUTS, why="with --gpus the layout is searched")
    _given(request, without=("sweep",), why="that asks for many numbers of GPUs: call `scale`")
    return _encoded(_given(request, without=LAYOUTS_NOT_SERVED, why=NO_RANKS))


def scale_body(request: TuneRequest) -> bytes:
    """Return the body of a search at several numbers of GPUs. Raise as ``layouts_body`` does."""
    _given(request, without=NOT_OF_LAYOUTS, why="with --sweep the layout is searched")
    _given(request, without=("gpus",), why="--sweep has the numbers of GPUs")
    return _encoded(_given(request, without=SCALE_NOT_SERVED, why=NO_RANKS))


def plan_body(request: PlanFields) -> bytes:
    """Return the body of a simulation or sweep, with the content of the plan file.

    Raise PlanFileError for a bad plan file.
    """
    given = _given(request)
    if request.plan:
        given["plan"] = load_plan(request.plan).to_json()
    return _encoded(given)


def whatif_body(request: WhatIfRequest) -> bytes:
    """Return the body of a what-if. Raise InputError for one that is a sweep."""
    _given(request, without=("sweep", "retune"), why="that takes a while: ask for a sweep")
    return plan_body(request)


def calibration_body(request: CalibrateRequest) -> bytes:
    """Return the body of a calibration, with the runs of its files as a table.

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
    plain = {"profile": request.profile, "name": request.name, "runs": table.getvalue()}
    return _encoded(plain)


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
