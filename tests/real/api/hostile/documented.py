"""Whether an answer is one that the OpenAPI document tells of."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from tests.real.api.hostile.exchange import Answer, Part, request_line

ANY_ROUTE: Final = frozenset({400, 403, 404, 405, 408, 431})
"""What the document's description says of every request, and of those that match no route."""


def undocumented(document: dict[str, Any], parts: list[Part], answer: Answer) -> str:
    """Why the answer is not documented; nothing where it is."""
    problem = _problem(answer)
    operation = _operation(document, *request_line(parts))
    if operation is None:
        known = answer.status in ANY_ROUTE or (answer.status == 200 and not problem)
        return problem if known else f"{answer.status} on no route"
    responses = operation["responses"]
    if str(answer.status) not in responses and answer.status not in ANY_ROUTE:
        return f"{answer.status} is not among {', '.join(responses)}"
    return problem


def _problem(answer: Answer) -> str:
    """What is wrong with how an error is told."""
    if answer.status < 400:
        return ""
    kind = answer.headers.get("content-type", "")
    return "" if kind == "application/problem+json" else f"an error as {kind!r}"


def _operation(document: dict[str, Any], method: str, path: str) -> dict[str, Any] | None:
    for template, operations in document["paths"].items():
        pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, unquote(path)) and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    return None
