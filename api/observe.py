"""Middleware of every request: safe headers, a log line, metrics, and a problem where code failed.

The log has method, route, status, milliseconds and the request's id, but no query, header, token,
body or owner.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
import traceback
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import Problem, ProblemError, problem_response
from api.wire import API_CSP

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
