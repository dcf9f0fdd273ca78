"""URLs: of a server, of a job, and names as segments of their paths."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from domino_tune.requests import service
from simulator.errors import InputError

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
