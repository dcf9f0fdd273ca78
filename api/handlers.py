"""Turn exceptions into problem+json, with one function for each kind of exception."""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.body import sentence
from api.problems import (
    MOST_FAULTS,
    Fault,
    Problem,
    ProblemError,
    phrase,
    problem_of,
    problem_response,
)
from domino_tune.base.errors import with_cause
from simulator.errors import DominoTuneError

LOG: Final = logging.getLogger("domino_tune.api")
RETRY_S = {429: "5", 503: "2", 507: "2"}
"""Retry-After in seconds; longer where a job must end first."""
DETAILS = {
    404: "There is nothing here; see /docs.",
    405: "This cannot be done here; Allow says what can.",
}


async def domino_tune_error(request: Request, error: Exception) -> Response:
    """Answer with an error of domino_tune, by domino_tune.base.errors.MEANINGS."""
    assert isinstance(error, DominoTuneError)
    problem = problem_of(error)
    if problem.status >= 500:
        LOG.warning("%s: %s", request.scope["path"][:200], with_cause(error))
    retry_s = RETRY_S.get(problem.status)
    return _answer(request, problem, {"Retry-After": retry_s} if retry_s else None)


async def problem_error(request: Request, error: Exception) -> Response:
    """Answer with an error of the wire."""
    assert isinstance(error, ProblemError)
    error.__traceback__ = None  # its frames hold the body, and each other
    return _answer(request, error.problem(), error.headers)


async def validation_error(request: Request, error: Exception) -> Response:
    """Answer to bad parameters of path, query and headers; ``api.body`` checks bodies."""
    assert isinstance(error, RequestValidationError)
    faults = [
        Fault(parameter=str(item["loc"][-1]), detail=sentence(item["msg"]))
        for item in error.errors()[:MOST_FAULTS]
    ]
    detail = f"{faults[0].parameter}: {faults[0].detail}"
    return _answer(request, Problem(title=phrase(422), status=422, detail=detail, errors=faults))


async def http_exception(request: Request, error: Exception) -> Response:
    """Answer to unknown paths and methods, which the router refuses."""
    assert isinstance(error, HTTPException)
    headers: dict[str, str] = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    detail = DETAILS.get(error.status_code, str(error.detail))
    problem = Problem(title=phrase(error.status_code), status=error.status_code, detail=detail)
    return _answer(request, problem, headers)


def _allowed(request: Request) -> list[str]:
    """Return the methods of the request's path."""
    routes: list[Any] = request.app.routes
    path = request.scope["path"]
    methods = (one.methods for one in routes if one.path_regex.match(path))
    return sorted({method for some in methods for method in some})


def _answer(request: Request, problem: Problem, headers: dict[str, str] | None = None) -> Response:
    placed = problem.model_copy(update={"instance": request.scope["path"][:200]})
    return problem_response(placed, headers)
