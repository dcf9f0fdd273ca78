"""Settings of the connection: timeouts, pauses between tries, the token's header."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

import httpx

from domino_tune.base.errors import ServiceError
from domino_tune.client.address import base_url, is_loopback
from domino_tune.client.tokens import Token, find_token

TIMEOUT: Final = httpx.Timeout(connect=5, read=60, write=60, pool=5)
EVENTS_TIMEOUT: Final = httpx.Timeout(connect=5, read=45, write=5, pool=5)
"""For event streams: the client asks for the job when the server was silent for so long."""
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Pause before each new try of a request that got no answer."""
PATIENT_PAUSES_S: Final = (*PAUSES_S, 4.0, 8.0, 8.0, 8.0, 8.0)
"""The same while a job runs: a server that restarts is back by then."""
POLL_PAUSE_S: Final = 0.2
"""First pause between two looks at a job; each further pause is half as long again."""
MAX_POLL_PAUSE_S: Final = 5.0
JSON_HEADERS: Final = {"Content-Type": "application/json"}


def options(server: str, token: str | Token | None) -> dict[str, Any]:
    """Return the arguments of httpx's clients.

    Raise InputError for a bad URL, AccessError for a bad token.
    """
    url = base_url(server)
    held = Token(token, "`token`") if isinstance(token, str) else token or find_token()
    return {
        "base_url": url,
        "auth": _bearer(held) if held else None,
        "timeout": TIMEOUT,
        "trust_env": not is_loopback(url),
    }


def new_key() -> str:
    """Return an idempotency key that no other request has."""
    return uuid.uuid4().hex


def unreachable(url: httpx.URL, error: httpx.RequestError) -> ServiceError:
    """Return a failed connection as an error of ours: httpx's error holds the request's headers."""
    reason = str(error) or type(error).__name__
    return ServiceError(f"{url} cannot be reached: {reason}. Is it running, and is the URL right?")


def _bearer(token: Token) -> Callable[[httpx.Request], httpx.Request]:
    """Return a function that adds the token to a request just before httpx sends it."""

    def add(request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = token.header()
        return request

    return add
