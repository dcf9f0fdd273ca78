"""What every request goes through: a log line, metrics, ETags, problems where code failed."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from api.wire import API_CSP
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


# Middleware of every request ----------------------------------------------------------------------
# Safe headers, a log line, metrics, and a problem where code failed.
#
# The log has method, route, status, milliseconds and the request's id, but no query, header, token,
# body or owner.

ACCESS: Final = logging.getLogger("domino_tune.access")
ERRORS: Final = logging.getLogger("domino_tune.api")
REQUEST_ID: Final = "X-Request-Id"
SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": API_CSP,
    "Cache-Control": "no-store",
}
"""Default headers of every answer."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
READING: Final = frozenset({"GET", "HEAD"})
UNMATCHED: Final = "unmatched"
OTHER_SITES: Final = "Pages of other sites may not call this service."
TWO_LENGTHS: Final = (
    "Content-Length and Transfer-Encoding say the length of a body twice, and proxies may believe "
    "either: send one of them."
)


class Counts(Protocol):
    """Metrics of requests."""

    def began(self) -> None:
        """Count a request that came in."""

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``seconds`` until its first byte was sent."""


class Observe:
    """ASGI middleware: what all routes have in common.

    ``route_of`` returns the route's name of a served scope, from a bounded set.
    """

    def __init__(self, app: ASGIApp, counts: Counts, route_of: Callable[[Scope], str]) -> None:
        self.app = app
        self.counts = counts
        self.route_of = route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        self.counts.began()
        try:
            await self.app(scope, receive, answer.send)
        except Exception as error:
            await self._failed(error, answer, scope, receive)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            route = self.route_of(scope)
            self.counts.ended(method, route, answer.status, answer.seconds)
            ACCESS.info(
                json.dumps({
                    "method": method, "route": route, "status": answer.status,
                    "ms": round(answer.seconds * 1e3, 1), "id": answer.identity,
                })
            )  # fmt: skip

    async def _failed(
        self, error: Exception, answer: _Answer, scope: Scope, receive: Receive
    ) -> None:
        """Log where a bug is, without the data that caused it; answer if no answer has begun."""
        places = "".join(traceback.format_tb(error.__traceback__))
        ERRORS.error("request %s: %s at\n%s", answer.identity, type(error).__name__, places)
        if not answer.status:
            detail = f"A bug of ours; the log has more under {answer.identity}."
            problem = Problem(title="Internal Server Error", status=500, detail=detail)
            await problem_response(problem)(scope, receive, answer.send)


class _Answer:
    """The answer that is sent, with headers added; ``status`` is 0 until it begins."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._began = time.perf_counter()
        self.identity = secrets.token_hex(8)
        self.status = 0
        self.seconds = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.seconds = time.perf_counter() - self._began
            headers = MutableHeaders(scope=message)
            for name, value in SAFE_HEADERS.items():
                headers.setdefault(name, value)
            headers[REQUEST_ID] = self.identity
        await self._send(message)


class Guard:
    """ASGI middleware: refuse calls that pages of other sites make through a browser, by Origin or,
    where a browser leaves that out, by Sec-Fetch-Site; and bodies whose length is said twice.

    Where ``hosts`` are given, a request must name one of them: else a page could point its own name
    at this machine, and read answers without a token.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one scope."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            answer = problem_response(refused.problem(), refused.headers)
            await answer(scope, receive, send)

    def _refused(self, scope: Scope) -> ProblemError | None:
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            return ProblemError(400, TWO_LENGTHS, headers={"Connection": "close"})
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts and _name(host) not in self.hosts:
            return ProblemError(403, f"This service answers to {', '.join(self.hosts)} only.")
        if origin is not None and origin.partition("//")[2].lower() != host.lower():
            return ProblemError(403, OTHER_SITES)
        changes = scope["method"] not in READING
        if changes and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return ProblemError(403, OTHER_SITES)
        return None


def _name(host: str) -> str:
    """Return a Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


# Middleware for whole answers ---------------------------------------------------------------------
# An ETag on each answer to GET and HEAD, 304 if the caller has it already, and gzip if the caller
# accepts it.
#
# Event streams, plain text and streamed answers pass through unchanged.

TYPES: Final = frozenset({
    "application/json", "application/problem+json", "text/html", "text/css", "text/javascript",
    "image/svg+xml",
})  # fmt: skip
"""Media types of whole answers."""
LEAST_BYTES: Final = 1024
"""Smaller answers are not compressed: they fit in one packet anyway."""
IN_THREAD_BYTES: Final = 64 << 10
LEVEL: Final = 4
"""Level of gzip: twice as fast as the usual 6 for 5 % more bytes."""
ZIPPED: Final = ";gzip"
"""End of a strong ETag of an answer that was compressed (RFC 9110, section 8.8.3.3)."""
CACHING: Final = "private, no-cache"
"""A browser may keep the answer for this caller, and must ask whether it has changed."""
Made = TypeVar("Made")
_REFUSED: Final = re.compile(r";\s*q=0(\.0*)?\s*$", re.IGNORECASE)


class Representation:
    """ASGI middleware: send each answer in the form that suits the request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        if scope["type"] == "http":
            send = _WholeAnswer(scope["method"], Headers(scope=scope), send).send
        await self.app(scope, receive, send)


class _WholeAnswer:
    """Holds back the start of an answer until its body is known."""

    def __init__(self, method: str, asked: Headers, send: Send) -> None:
        self._reads = method in READING
        self._asked = asked
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Take a message from the application and send its representation."""
        if message["type"] == "http.response.start" and _is_whole(message):
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            if not message.get("more_body", False):
                message = await self._represented(start, message)
            await self._send(start)
        await self._send(message)

    async def _represented(self, start: Message, message: Message) -> Message:
        """Return the body to send, and change its start message to match."""
        body: bytes = message.get("body", b"")
        headers = MutableHeaders(raw=start["headers"])
        headers.add_vary_header("Accept-Encoding")
        zips = len(body) >= LEAST_BYTES and _takes_gzip(self._asked) and _is_plain(headers)
        if self._reads and start["status"] == 200:
            headers.setdefault("Cache-Control", CACHING)
            tag = headers.get("ETag", "") or await _off_loop(body, _weak_tag)
            if zips and not tag.startswith("W/"):
                tag = f'{tag[:-1]}{ZIPPED}"'
            headers["ETag"] = tag
            if has(self._asked.getlist("If-None-Match"), tag):
                del headers["Content-Length"], headers["Content-Type"]
                start["status"] = 304
                return {**message, "body": b""}
        if zips:
            body = await _off_loop(body, partial(gzip.compress, compresslevel=LEVEL, mtime=0))
            headers["Content-Encoding"] = "gzip"
            headers["Content-Length"] = str(len(body))
        return {**message, "body": body}


def has(given: list[str], tag: str) -> bool:
    """Return whether the lines of If-None-Match name ``tag`` (RFC 9110, section 13.1.2)."""
    tags = [one.strip().removeprefix("W/") for line in given for one in line.split(",")]
    return tag.removeprefix("W/") in tags or "*" in tags


def _is_whole(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("Content-Type", "").partition(";")[0]
    return kind in TYPES


def _is_plain(headers: Headers) -> bool:
    return "Content-Encoding" not in headers


def _takes_gzip(asked: Headers) -> bool:
    codings = ",".join(asked.getlist("Accept-Encoding")).lower().split(",")
    named = [one for one in codings if one.partition(";")[0].strip() == "gzip"]
    return any(not _REFUSED.search(one) for one in named)


def _weak_tag(body: bytes) -> str:
    return f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'


async def _off_loop(body: bytes, function: Callable[[bytes], Made]) -> Made:
    """Return ``function(body)``, computed in a thread if the body is large."""
    if len(body) < IN_THREAD_BYTES:
        return function(body)
    return await anyio.to_thread.run_sync(function, body)
