"""One request, byte by byte as given, over a socket; and what came back."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple

ANSWER_S = 30.0
Part = bytes | float
"""Bytes to send, or seconds to wait."""


class Answer(NamedTuple):
    """``status`` 0: the connection ended without an answer. ``seconds`` from the last byte that
    was sent, or taken, to the answer's first."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


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
        response = HTTPResponse(connection, method=_method(parts))
        try:
            response.begin()
            seconds = time.perf_counter() - began
            body = response.read()
        except (OSError, HTTPException):
            return Answer(0, {}, b"", time.perf_counter() - began)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, seconds)


def _method(parts: Sequence[Part]) -> str:
    first = next((part for part in parts if isinstance(part, bytes)), b"")
    return "HEAD" if first.startswith(b"HEAD ") else "GET"


def request_line(parts: Sequence[Part]) -> tuple[str, str]:
    """(method, path) of a request, as far as it has them."""
    first = next((part for part in parts if isinstance(part, bytes)), b"")
    words = first.split(b"\r\n")[0].decode("latin-1").split(" ")
    return words[0], (words[1] if len(words) > 1 else "").partition("?")[0]
