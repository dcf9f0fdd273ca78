"""What both clients share of httpx: its settings, and its answers and failures as ours."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import httpx

from domino_tune.client.address import base_url, is_loopback
from domino_tune.client.answers import Answer
from domino_tune.client.calls import Call
from domino_tune.client.flows import LostError
from domino_tune.client.tokens import Token, find_token

TIMEOUT: Final = httpx.Timeout(connect=5, read=60, write=60, pool=5)
QUIET: Final = httpx.Timeout(connect=5, read=45, write=5, pool=5)
"""For events: a server that is silent for longer than this is asked."""


class BearerAuth(httpx.Auth):
    """Adds the token to each request, where the connection is made and nowhere before."""

    def __init__(self, token: Token) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the header."""
        request.headers["Authorization"] = self._token.header()
        yield request


def options(server: str, token: str | Token | None) -> dict[str, Any]:
    """How httpx's client is made. Raises InputError for a bad URL, AccessError for a bad token."""
    url = base_url(server)
    held = Token(token, "`token`") if isinstance(token, str) else token or find_token()
    return {
        "base_url": url,
        "auth": BearerAuth(held) if held else None,
        "timeout": TIMEOUT,
        "trust_env": not is_loopback(url),
    }


def prepared(call: Call[Any]) -> dict[str, Any]:
    """A call as httpx takes it."""
    return {
        "method": call.method,
        "url": call.path,
        "content": call.body or None,
        "headers": dict(call.headers),
    }


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    """A response without httpx."""
    headers = {key.lower(): value for key, value in response.headers.items()}
    return Answer(status=response.status_code, headers=headers, body=body)


def lost(url: httpx.URL, error: httpx.RequestError) -> LostError:
    """A failure of the connection without httpx, whose errors hold the request."""
    return LostError(f"{url} cannot be reached: {str(error) or type(error).__name__}.")
