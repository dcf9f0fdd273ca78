"""Responses: the JSON that a server sent, or the error that its problem describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx

from domino_tune.base.errors import MEANINGS, AccessError, NotFoundError, ServiceError
from domino_tune.store.files import parse_json
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

Json = dict[str, Any]
MAX_RETRY_AFTER_S: Final = 60.0
BUSY: Final = (429, 502, 503, 504)
"""Statuses after which the same request may succeed a little later."""
MAX_TEXT_CHARACTERS: Final = 2000
KINDS: Final = {
    meaning.title.lower().replace(" ", "-"): kind
    for kind, meaning in reversed(MEANINGS.items())
    if issubclass(kind, DominoTuneError)
}
"""Last word of a problem's type -> error class; of classes with one title the first in MEANINGS."""


def json_of(response: httpx.Response) -> Json:
    """Return the JSON object in the body. Raise ServiceError if the body is not one."""
    return parse_json(response.content, source="The server's answer", error=ServiceError)


def check(response: httpx.Response) -> None:
    """Raise the error that the response describes, unless it is a success."""
    if response.is_success:
        return
    if "problem+json" not in response.headers.get("Content-Type", ""):
        status = response.status_code
        raise _error_of_status(status, f"The server answered {status} without a reason.")
    raise error_of(parse_json(response.content, source="The server's problem", error=ServiceError))


def retry_after_s(response: httpx.Response) -> float:
    """Return how long the server asks to wait, in seconds, at most a minute; 0 by default."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER_S) if re.fullmatch(r"\d{1,9}", text) else 0.0


def error_of(problem: Mapping[str, Any]) -> DominoTuneError:
    """Return a problem (RFC 9457) as an error of the class that the verb raises locally.

    The problem is the body of a response or the error of a failed job.
    """
    status = problem.get("status")
    kind = KINDS.get(str(problem.get("type", "")).rpartition("#")[2])
    text = _text(problem)
    if kind is InfeasiblePlanError:
        change = problem.get("change")
        return InfeasiblePlanError(
            text,
            reason=str(problem.get("reason", "")),
            change=change if isinstance(change, dict) else None,
        )
    return (
        kind(text) if kind else _error_of_status(status if isinstance(status, int) else 500, text)
    )


def _error_of_status(status: int, text: str) -> DominoTuneError:
    if status in (401, 403):
        return AccessError(f"{text} Give a token by --token-file or $DOMINO_TUNE_TOKEN.")
    if status == 404:
        return NotFoundError(text)
    return InputError(text) if 400 <= status < 500 and status not in BUSY else ServiceError(text)


def _text(problem: Mapping[str, Any]) -> str:
    """Return the detail, then each fault's place and text, except faults that repeat the detail."""
    detail = str(problem.get("detail") or problem.get("title") or "The server refused.")
    faults = problem.get("errors")
    places = [
        f"{one.get('pointer') or one.get('parameter')}: {one.get('detail')}"
        for one in (faults if isinstance(faults, list) else [])
        if isinstance(one, dict) and one.get("detail") != detail
    ]
    text = f"{detail} ({'; '.join(places)})" if places else detail
    return text[:MAX_TEXT_CHARACTERS]
