"""One request, byte by byte as given, over a socket; and what came back."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import time
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple, cast

from tests.support.processes import PATIENCE_S

ANSWER_S: Final = PATIENCE_S
Part = bytes | float
"""Bytes to send, or seconds to wait."""


class Answer(NamedTuple):
    """``status`` 0: the connection ended without an answer. ``seconds`` from the last byte that
    was sent, or taken, to the answer's first."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float = 0.0

    @property
    def problem(self) -> dict[str, Any]:
        """Its problem; empty where it has none."""
        kind = self.headers.get("content-type", "")
        return dict(json.loads(self.body)) if kind == "application/problem+json" else {}


def exchange(port: int, parts: Sequence[Part]) -> Answer:
    """Send ``parts`` to the service at ``port``."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as connection:
        with contextlib.suppress(OSError):  # it may be answered, and closed, before all is sent
            for part in parts:
                if isinstance(part, float):
                    time.sleep(part)
                else:
                    connection.sendall(part)
        began = time.perf_counter()
        response = HTTPResponse(connection)
        try:
            response.begin()
            seconds = time.perf_counter() - began
            body = response.read()
        except (OSError, HTTPException):
            return Answer(0, {}, b"", time.perf_counter() - began)
        return _answer(response, body)._replace(seconds=seconds)


def answer_in(data: bytes, *, ended: bool) -> Answer | None:
    """The answer in bytes that came over a connection; None where more of it may come."""
    if b"\r\n\r\n" in data:
        response = HTTPResponse(cast("socket.socket", _Received(data)))
        with contextlib.suppress(HTTPException):
            response.begin()
            return _answer(response, response.read())
    return Answer(0, {}, b"") if ended else None


class _Received:
    """As much of a socket as HTTPResponse needs."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def _answer(response: HTTPResponse, body: bytes) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, body)


def request_line(parts: Sequence[Part]) -> tuple[str, str]:
    """(method, path) of a request, as far as it has them."""
    first = next((part for part in parts if isinstance(part, bytes)), b"")
    words = first.split(b"\r\n")[0].decode("latin-1").split(" ")
    return words[0], (words[1] if len(words) > 1 else "").partition("?")[0]
