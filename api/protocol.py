"""uvicorn's HTTP/1.1 with a deadline: a slow request does not hold its connection.

``serve`` names it to uvicorn: ``http="api.protocol:TimedProtocol"``. ``api.body`` answers 408 to
slow bodies; this module limits request lines and headers, and bodies that nobody reads any more.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.problems import MEDIA_TYPE, Problem, phrase
from api.settings import from_environment
from domino_tune.service.serving import HEADER_BYTES

GRACE_S: Final = 2.0
"""By then ``api.body`` has answered a slow body."""
READ_BYTES: Final = 64 << 10
"""Bytes that asyncio reads at once, a quarter of its own choice: sixty connections that send large
bodies then take turns of a millisecond, and others do not wait long."""
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


@cache
def _receive_s() -> float:
    return from_environment().receive_s


def _is_long(received: bytes) -> bool:
    """Return whether a head exceeds HEADER_BYTES; h11 checks only incomplete ones."""
    return len(received) > HEADER_BYTES and not _END_OF_HEAD.search(received, 0, HEADER_BYTES)


class TimedProtocol(H11Protocol):
    """One connection. A request must arrive within ``receive_s`` of its first byte, the first one
    within ``receive_s`` of the connection's start; GRACE_S later the connection is closed."""

    _deadline: asyncio.TimerHandle | None = None
    _silent = True

    def connection_made(self, transport: Any) -> None:
        """Start the deadline."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Start the deadline at a request's first byte, and stop it at its last."""
        self._silent = False
        if self.conn.their_state is h11.IDLE and _is_long(self.conn.trailing_data[0] + data):
            self._refuse(431, f"A request line and headers may have {HEADER_BYTES:,} bytes.")
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the deadline where the next request has begun already."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem, unless an answer has begun."""
        self._refuse(400, "This is no HTTP/1.1 request that can be read.")

    def _watch(self) -> None:
        state = self.conn.their_state
        begun = state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not (self._silent or begun or state is h11.SEND_BODY):
            self._stop()
        elif self._deadline is None:
            seconds = _receive_s() + GRACE_S
            self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self._refuse(408, "The request was not in by its deadline; send it faster, or again.")

    def _refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            problem = Problem(title=phrase(status), status=status, detail=detail)
            body = problem.to_json()
            headers = [
                (b"content-type", MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            reason = phrase(status).encode()
            start = h11.Response(status_code=status, headers=headers, reason=reason)
            for event in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
