"""Conditions of requests: keys of idempotency, If-Match and If-None-Match, and Prefer."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Header
from starlette.requests import Request

from api.auth import Caller
from api.problems import ProblemError
from api.representation import ZIPPED
from api.wire import body_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.library import ANY

LONGEST_WAIT_S: Final = 30
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.ASCII)
_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match", max_length=500,
        description="ETag of what may be changed; needed where a profile is replaced.",
    ),
]  # fmt: skip
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match", max_length=500,
        description="`*`: only where nothing is there.",
    ),
]  # fmt: skip
Prefer = Annotated[
    str | None,
    Header(
        alias="Prefer",
        max_length=200,
        description="`wait=N`: answer when the job has ended, at most N ≤ 30 s.",
    ),
]


def idempotency(request: Request, caller: Caller, key: str | None) -> Idempotency | None:
    """Return the key, bound to its caller, route, query and body."""
    if key is None:
        return None
    route = f"{request.method} {request.scope['route'].path}"
    asked = f"{request.url.path}?{request.url.query}\n".encode()
    return Idempotency.of(caller.owner, route, key, asked + body_bytes(request))


def wait_of(prefer: str | None) -> int:
    """Return the seconds of ``wait=N`` in a Prefer header (RFC 7240), at most LONGEST_WAIT_S."""
    found = _WAIT.search(prefer or "")
    return min(int(found[1]), LONGEST_WAIT_S) if found else 0


def etag(content_id: str) -> str:
    """Return a content id as a strong ETag."""
    return f'"{content_id}"'


def tags(header: str | None) -> list[str]:
    """Return the content ids of If-Match or If-None-Match, or ``*``; weak tags match nothing.

    Raise ProblemError 400 for anything else (RFC 9110, section 13.1).
    """
    if header is None:
        return []
    if header.strip() == ANY:
        return [ANY]
    found, place = [], 0
    while place < len(header):
        tag = _TAG.match(header, place)
        if tag is None:
            raise ProblemError(400, 'If-Match and If-None-Match hold `*`, or tags like "sha256:…".')
        place = tag.end()
        if not tag[1]:
            found.append(tag[2].removesuffix(ZIPPED))
    return found or ["none"]
