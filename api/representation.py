"""Middleware for whole answers: an ETag on each answer to GET and HEAD, 304 if the caller has it
already, and gzip if the caller accepts it.

Event streams, plain text and streamed answers pass through unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TYPES: Final = frozenset({
    "application/json", "application/problem+json", "text/html", "text/css", "text/javascript",
    "image/svg+xml",
})  # fmt: skip
"""Media types of whole answers."""
READING: Final = ("GET", "HEAD")
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
            send = _Answer(scope["method"], Headers(scope=scope), send).send
        await self.app(scope, receive, send)


class _Answer:
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
