"""Requests of the service's operator: serve, manage tokens; and send results again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from domino_tune.requests import Request
from domino_tune.requests.options import option
from domino_tune.requests.outputs import token_option
from simulator.errors import InputError

SCOPES: Final = ("read", "tune", "admin")
"""The scopes of a token, each with those before it."""
JOB_KINDS: Final = ("tune", "layout", "scale", "sweep", "calibration", "validation")
JOB_STATES: Final = ("queued", "running", "done", "failed")
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

    trusted_proxy: tuple[str, ...] = option(
        "Address or network of a proxy whose X-Forwarded-For is believed; repeat it for several.",
        flag="--trusted-proxy", metavar="ADDRESS[/BITS]", default=(),
    )  # fmt: skip

    job_minutes: int = option(
        "Minutes of computing after which a job ends with the best so far (default 60).",
        flag="--job-minutes", metavar="N", default=60, minimum=1, maximum=60 * 24 * 7,
    )  # fmt: skip
    job_mib: int = option(
        "MiB of memory that a job's process may allocate (default 4096).",
        flag="--job-mib", metavar="N", default=4096, minimum=256, maximum=1 << 24,
    )  # fmt: skip
    keep_days: int = option(
        "Days for which jobs that have ended are kept (default 30).",
        flag="--keep-days", metavar="N", default=30, minimum=1, maximum=36_500,
    )  # fmt: skip
    keep_jobs: int = option(
        "Most jobs that have ended of one owner; older ones go first (default 1000).",
        flag="--keep-jobs", metavar="N", default=1000, minimum=1, maximum=1_000_000,
    )  # fmt: skip
    keep_mib: int = option(
        "Most MiB of one owner: jobs with their files, of which the oldest go first, profiles and "
        "models (default 2048).",
        flag="--keep-mib", metavar="N", default=2048, minimum=1, maximum=1 << 24,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _EXECUTOR.fullmatch(self.executor):
            raise InputError(
                f"--executor cannot be {self.executor!r}; give local, or dask://HOST:PORT."
            )
        for proxy in self.trusted_proxy:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise InputError(
                    f"--trusted-proxy cannot be {proxy!r}: {error}; give an address such as "
                    "192.0.2.1, or a network such as 192.0.2.0/24."
                ) from None


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
    days: int | None = option(
        "Days after which it expires (default: never).",
        flag="--days", metavar="N", default=None, minimum=1, maximum=36_500,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TokensListRequest(DatabaseFields):
    """List tokens, without their secrets."""


@dataclass(frozen=True, kw_only=True)
class TokensRevokeRequest(DatabaseFields):
    """Revoke a token; the next request with it is refused, and with the owner's last one his jobs
    end."""

    name: str = option("Name of the token.", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class SendRequest(Request):
    """Send measured results that `validate --report-to` saved because it could not send them."""

    file: str = option("File of the results.", metavar="FILE")
    to: str = option("Destination: the tune's job, SERVER/v1/jobs/ID.", flag="--to", metavar="URL")
    token_file: str | None = token_option()


@dataclass(frozen=True, kw_only=True)
class ServerFields(Request):
    """The server that is asked."""

    server: str = option("Server: http://HOST:PORT.", flag="--server", metavar="URL")
    token_file: str | None = token_option()


@dataclass(frozen=True, kw_only=True)
class JobsListRequest(ServerFields):
    """List your jobs of all kinds, newest first."""

    limit: int = option(
        "Most jobs (default 20).",
        flag="--limit", metavar="N", default=20, minimum=1, maximum=200,
    )  # fmt: skip
    kind: str | None = option(
        "Only jobs of this kind.", flag="--kind", choices=JOB_KINDS, default=None
    )
    state: str | None = option(
        "Only jobs in this state.", flag="--state", choices=JOB_STATES, default=None
    )
    search: str | None = option(
        "Only jobs whose label or request has each of these words, in small or capital letters.",
        flag="--search", metavar="WORDS", default=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JobFields(ServerFields):
    """One job."""

    job: str = option("Id of the job.", metavar="JOB")


@dataclass(frozen=True, kw_only=True)
class JobsShowRequest(JobFields):
    """Show a job: how far it is, and its result when it is done."""


@dataclass(frozen=True, kw_only=True)
class JobsStopRequest(JobFields):
    """Stop a job and keep what it has: it ends with the best so far."""


@dataclass(frozen=True, kw_only=True)
class JobsDeleteRequest(JobFields):
    """Delete a job with its result and files; one that runs ends."""
