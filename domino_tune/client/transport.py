"""The connection to a server: addresses, tokens, tries, and what it answers."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import httpx

from domino_tune.base.errors import MEANINGS, AccessError, NotFoundError, ServiceError
from domino_tune.requests import service
from domino_tune.store.files import parse_json
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

# Tokens -------------------------------------------------------------------------------------------
# Found in a file or the environment, and kept so that nothing prints them.

VARIABLE: Final = "DOMINO_TUNE_TOKEN"
MAX_CHARACTERS: Final = 200
_PRINTABLE: Final = re.compile(r"[!-~]+")


class SecretToken:
    """A secret that no repr, log or traceback shows; only ``header`` returns it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str, source: str) -> None:
        """Raise AccessError, which names ``source`` only, for a text that cannot be a token."""
        if len(secret) > MAX_CHARACTERS or not _PRINTABLE.fullmatch(secret):
            raise AccessError(f"{source} holds no token: one word of printable ASCII is wanted.")
        self._secret = secret

    def __repr__(self) -> str:
        return "Token(***)"

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self._secret}"


def find_token(file: str | None = None) -> SecretToken | None:
    """Return the token in ``file``, else the one in $DOMINO_TUNE_TOKEN, else None.

    Raise InputError for a file that cannot be read, AccessError for one that holds no token.
    """
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_CHARACTERS + 2)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InputError(
                f"The token file {file!r} cannot be read: {reason}; give another --token-file."
            ) from None
        return SecretToken(text.strip(), f"The token file {file!r}")
    secret = os.environ.get(VARIABLE, "")
    return SecretToken(secret.strip(), f"${VARIABLE}") if secret.strip() else None


# URLs ---------------------------------------------------------------------------------------------
# Of a server, of a job, and names as segments of their paths.

_JOB: Final = re.compile(r"(.+)/v1/jobs/([A-Za-z0-9_-]+)/?")


def base_url(server: str) -> str:
    """Return a server's URL without a slash at its end. Raise InputError for any other URL."""
    parts = _split(server)
    if parts.username or parts.password:
        raise InputError(
            "A server's URL holds no user or password; give the token by --token-file or "
            "$DOMINO_TUNE_TOKEN."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{server!r} is no server's URL; write it like http://127.0.0.1:8000.")
    return server.rstrip("/")


def is_loopback(url: str) -> bool:
    """Return whether the URL leads to this machine: such requests must not go through a proxy."""
    return service.is_loopback(_split(url).hostname or "")


def segment(name: str) -> str:
    """Return a name as one segment of a path, whatever characters it has."""
    return quote(name, safe="")


def job_at(url: str) -> tuple[str, str]:
    """Return server and job of ``SERVER/v1/jobs/ID``.

    Raise InputError for any other URL.
    """
    found = _JOB.fullmatch(url)
    if not found:
        raise InputError(
            f"Results cannot be sent to {url!r}; write SERVER/v1/jobs/ID, with the ID of the tune."
        )
    return base_url(found[1]), found[2]


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is no URL: {error}.") from None
    return parts


# Settings of the connection -----------------------------------------------------------------------
# Timeouts, pauses between tries, the token's header.

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


def options(server: str, token: str | SecretToken | None) -> dict[str, Any]:
    """Return the arguments of httpx's clients.

    Raise InputError for a bad URL, AccessError for a bad token.
    """
    url = base_url(server)
    held = SecretToken(token, "`token`") if isinstance(token, str) else token or find_token()
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


def _bearer(token: SecretToken) -> Callable[[httpx.Request], httpx.Request]:
    """Return a function that adds the token to a request just before httpx sends it."""

    def add(request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = token.header()
        return request

    return add


# Responses ----------------------------------------------------------------------------------------
# The JSON that a server sent, or the error that its problem describes.

Json = dict[str, Any]
MAX_RETRY_AFTER_S: Final = 60.0
BUSY: Final = (429, 502, 503, 504)
"""Statuses after which the same request may succeed a little later."""
MAX_TEXT_CHARACTERS: Final = 2000
KINDS: Final = {
    meaning.title.lower().replace(" ", "-"): kind
    for kind, meaning in reversed(MEANINGS.items())
    if issubclass(kind, DominoTuneError)
}
"""Last word of a problem's type -> error class; of classes with one title the first in MEANINGS."""


def json_of(response: httpx.Response) -> Json:
    """Return the JSON object in the body. Raise ServiceError if the body is not one."""
    return parse_json(response.content, source="The server's answer", error=ServiceError)


def check(response: httpx.Response) -> None:
    """Raise the error that the response describes, unless it is a success."""
    if response.is_success:
        return
    if "problem+json" not in response.headers.get("Content-Type", ""):
        status = response.status_code
        raise _error_of_status(status, f"The server answered {status} without a reason.")
    raise error_of(parse_json(response.content, source="The server's problem", error=ServiceError))


def retry_after_s(response: httpx.Response) -> float:
    """Return how long the server asks to wait, in seconds, at most a minute; 0 by default."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER_S) if re.fullmatch(r"\d{1,9}", text) else 0.0


def error_of(problem: Mapping[str, Any]) -> DominoTuneError:
    """Return a problem (RFC 9457) as an error of the class that the verb raises locally.

    The problem is the body of a response or the error of a failed job.
    """
    status = problem.get("status")
    kind = KINDS.get(str(problem.get("type", "")).rpartition("#")[2])
    text = _text(problem)
    if kind is InfeasiblePlanError:
        change = problem.get("change")
        return InfeasiblePlanError(
            text,
            reason=str(problem.get("reason", "")),
            change=change if isinstance(change, dict) else None,
        )
    return (
        kind(text) if kind else _error_of_status(status if isinstance(status, int) else 500, text)
    )


def _error_of_status(status: int, text: str) -> DominoTuneError:
    if status in (401, 403):
        return AccessError(f"{text} Give a token by --token-file or $DOMINO_TUNE_TOKEN.")
    if status == 404:
        return NotFoundError(text)
    return InputError(text) if 400 <= status < 500 and status not in BUSY else ServiceError(text)


def _text(problem: Mapping[str, Any]) -> str:
    """Return the detail, then each fault's place and text, except faults that repeat the detail."""
    detail = str(problem.get("detail") or problem.get("title") or "The server refused.")
    faults = problem.get("errors")
    places = [
        f"{one.get('pointer') or one.get('parameter')}: {one.get('detail')}"
        for one in (faults if isinstance(faults, list) else [])
        if isinstance(one, dict) and one.get("detail") != detail
    ]
    text = f"{detail} ({'; '.join(places)})" if places else detail
    return text[:MAX_TEXT_CHARACTERS]


class EventReader:
    """Collects the ``data`` lines of an event until it is complete (WHATWG HTML, 9.2.6)."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def line(self, text: str) -> Json | None:
        """Take a line without its end. Return the JSON object of the event that it completes.

        Return None where it completes none, or one whose data are no JSON object.
        """
        if text:
            field, _, value = text.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = "\n".join(self._data), []
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None
