"""Requests of the service's operator: serve, manage tokens; and send results again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from domino_tune.requests import Request
from domino_tune.requests.options import option
from domino_tune.requests.outputs import token_option
from simulator.errors import InputError

SCOPES: Final = ("read", "tune", "admin")
"""The scopes of a token, each with those before it."""
_EXECUTOR: Final = re.compile(r"local|dask://[^/\s]+:\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class DatabaseFields(Request):
    """The service's database."""

    database: str | None = option(
        "Database of jobs, tokens and profiles, as SQLAlchemy writes it: sqlite:///FILE or "
        "postgresql://HOST/NAME (default: service.db in $DOMINO_TUNE_HOME).",
        flag="--database", metavar="URL", default=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServeRequest(DatabaseFields):
    """Serve the API and its page until interrupted."""

    host: str = option(
        "Address to listen on (default 127.0.0.1); one that other machines reach needs tokens.",
        flag="--host", metavar="ADDRESS", default="127.0.0.1",
    )  # fmt: skip
    port: int = option(
        "Port to listen on (default 8000; 0 takes a free one).",
        flag="--port", metavar="N", default=8000, minimum=0, maximum=65535,
    )  # fmt: skip
    executor: str = option(
        "Where jobs run: processes of this machine (default), or a Dask cluster by its address.",
        flag="--executor", metavar="local|dask://HOST:PORT", default="local",
    )  # fmt: skip
    workers: int | None = option(
        "Jobs that run at once (default: one per CPU).",
        flag="--workers", metavar="N", default=None, minimum=1, maximum=1024,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _EXECUTOR.fullmatch(self.executor):
            raise InputError(
                f"--executor cannot be {self.executor!r}; give local, or dask://HOST:PORT."
            )


@dataclass(frozen=True, kw_only=True)
class TokensAddRequest(DatabaseFields):
    """Make a token; its secret is shown only once."""

    name: str = option("Name of the token; revoking needs it.", metavar="NAME")
    owner: str | None = option(
        "Owner of the jobs that it reaches (default: the token's name).",
        flag="--owner", metavar="NAME", default=None,
    )  # fmt: skip
    scope: str = option(
        "What it allows; each scope includes those before it (default tune).",
        flag="--scope", choices=SCOPES, default="tune",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TokensListRequest(DatabaseFields):
    """List tokens, without their secrets."""


@dataclass(frozen=True, kw_only=True)
class TokensRevokeRequest(DatabaseFields):
    """Revoke a token; the next request with it is refused."""

    name: str = option("Name of the token.", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class SendRequest(Request):
    """Send measured results that `validate --report-to` saved because it could not send them."""

    file: str = option("File of the results.", metavar="FILE")
    to: str = option("Destination: SERVER/v1/tunes/ID/validations.", flag="--to", metavar="URL")
    token_file: str | None = token_option()
