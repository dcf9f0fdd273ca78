"""Whether an answer is the one that the table and the OpenAPI document describe."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from tests.support.door.exchange import Answer, Part, request_line
from tests.support.door.made import Case
from tests.support.frozen import document

ANY_ROUTE: Final = frozenset({400, 403, 404, 405, 408, 431})
"""Statuses that the document's description gives for every request, and for those that match no
route.
"""
MOST_BYTES: Final = 2_500
"""Largest problem, whatever was sent."""


def wrong(case: Case, answer: Answer) -> str:
    """Return what is wrong with the answer, or nothing."""
    told = answer.problem
    found = (
        answer.status, told.get("type", "").removeprefix("/docs/problems#"),
        {one.get("pointer") or one.get("parameter") for one in told.get("errors", ())},
    )  # fmt: skip
    if found != (case.status, case.type, set(case.at)) or case.said not in told.get("detail", ""):
        return f"{found} with {answer.body[:300]!r}"
    if told and len(answer.body) > MOST_BYTES:
        return f"{len(answer.body):,} bytes"
    return _undocumented(list(case.parts), answer)


def _undocumented(parts: list[Part], answer: Answer) -> str:
    operation = _operation(*request_line(parts))
    if operation is None:
        known = answer.status in ANY_ROUTE or (answer.status == 200 and not answer.problem)
        return "" if known else f"{answer.status} on no route"
    if str(answer.status) not in operation["responses"] and answer.status not in ANY_ROUTE:
        return f"{answer.status} is not among {', '.join(operation['responses'])}"
    return ""


def _operation(method: str, path: str) -> dict[str, Any] | None:
    for template, operations in document()["paths"].items():
        pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, unquote(path)) and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    return None
