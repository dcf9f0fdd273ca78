"""Requests as bodies: the command line's fields by their names, what is at its default left out."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from domino_tune.requests import PlanFields, Request, TuneRequest, WhatIfRequest
from domino_tune.requests.options import option_of
from domino_tune.requests.verbs import NOT_SERVED
from domino_tune.store.plans import load_plan
from simulator.errors import InputError

NAMES: Final = ("model", "profile")


def tune_body(request: TuneRequest) -> dict[str, Any]:
    """A tune. Raises InputError for options that a server cannot follow."""
    return _body(request, without=NOT_SERVED, why="a server starts no ranks")


def plan_body(request: PlanFields) -> dict[str, Any]:
    """A simulation or sweep, its plan file inside. Raises PlanFileError for a bad one."""
    body = _body(request)
    return {**body, "plan": load_plan(request.plan).to_json()} if request.plan else body


def whatif_body(request: WhatIfRequest) -> dict[str, Any]:
    """A what-if that is answered at once. Raises InputError for one that is a sweep."""
    _body(request, without=("sweep", "retune"), why="that takes a while: ask for a sweep")
    return plan_body(request)


def _body(request: Request, *, without: Collection[str] = (), why: str = "") -> dict[str, Any]:
    given = {item.name: item for item in fields(request) if _is_given(request, item)}
    refused = [option_of(given[name]).flag for name in without if name in given]
    if refused:
        raise InputError(f"{', '.join(refused)} cannot be asked of a server: {why}.")
    for name in NAMES:
        text = getattr(request, name, None)
        if text and (os.sep in text or text.endswith(".json")):
            raise InputError(
                f"{option_of(given[name]).flag} {text!r} is a file; a server takes the names that "
                f"it lists under /v1/{name}s."
            )
    return {name: getattr(request, name) for name in given}


def _is_given(request: Request, item: Field[Any]) -> bool:
    return item.default is MISSING or getattr(request, item.name) != item.default
