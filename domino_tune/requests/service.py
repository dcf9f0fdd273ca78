"""Requests of the service's operator: serve, manage tokens; and send results again."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import ip_network
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from domino_tune.requests.options import FileName, Request, Text, Texts, option
from domino_tune.requests.outputs import TokenFile
from simulator.errors import InputError

Scope = Literal["read", "tune", "admin"]
"""What a token allows; each scope includes those before it."""
JobKind = Literal["tune", "layout", "scale", "whatif", "calibrate", "validate"]
JobState = Literal["queued", "running", "done", "failed"]
Workers = Annotated[int, Field(ge=1, le=1024)]
Days = Annotated[int, Field(ge=1, le=36_500)]
_EXECUTOR: Final = re.compile(r"local|dask://[^/\s]+:\d{1,5}")


class DatabaseFields(Request):
    """The service's database."""

    database: Annotated[Text | None, option(
        "Database of jobs, tokens and profiles, as SQLAlchemy writes it: sqlite:///FILE or "
        "postgresql://HOST/NAME (default: service.db in $DOMINO_TUNE_HOME).",
        metavar="URL")] = None  # fmt: skip


class ServeRequest(DatabaseFields):
    """Serve the API and its page until interrupted."""

    host: Annotated[Text, option(
        "Address to listen on (default 127.0.0.1); one that other machines reach needs tokens.",
        metavar="ADDRESS")] = "127.0.0.1"  # fmt: skip
    port: Annotated[int, Field(ge=0, le=65535), option(
        "Port to listen on (default 8000; 0 takes a free one).")] = 8000  # fmt: skip
    executor: Annotated[Text, option(
        "Where jobs run: processes of this machine (default), or a Dask cluster by its address.",
        metavar="local|dask://HOST:PORT")] = "local"  # fmt: skip
    workers: Annotated[Workers | None, option(
        "Jobs that run at once (default: one per CPU).")] = None  # fmt: skip

    trusted_proxy: Annotated[Texts, option(
        "Address or network of a proxy whose X-Forwarded-For is believed; repeat it for several.",
        metavar="ADDRESS[/BITS]")] = ()  # fmt: skip

    job_minutes: Annotated[int, Field(ge=1, le=60 * 24 * 7), option(
        "Minutes of computing after which a job ends with the best so far (default 60)."
        )] = 60  # fmt: skip
    job_mib: Annotated[int, Field(ge=256, le=1 << 24), option(
        "MiB of memory that a job's process may allocate (default 4096).")] = 4096  # fmt: skip
    keep_days: Annotated[Days, option(
        "Days for which jobs that have ended are kept (default 30).")] = 30  # fmt: skip
    keep_jobs: Annotated[int, Field(ge=1, le=1_000_000), option(
        "Most jobs that have ended of one owner; older ones go first (default 1000)."
        )] = 1000  # fmt: skip
    keep_mib: Annotated[int, Field(ge=1, le=1 << 24), option(
        "Most MiB of one owner: jobs with their files, of which the oldest go first, profiles and "
        "models (default 2048).")] = 2048  # fmt: skip

    @model_validator(mode="after")
    def _check(self) -> ServeRequest:
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
        return self


class TokensAddRequest(DatabaseFields):
    """Make a token; its secret is shown only once."""

    name: Annotated[Text, option(
        "Name of the token; revoking needs it.", argument=True, metavar="NAME")]  # fmt: skip
    owner: Annotated[Text | None, option(
        "Owner of the jobs that it reaches (default: the token's name).",
        metavar="NAME")] = None  # fmt: skip
    scope: Annotated[Scope, option(
        "What it allows; each scope includes those before it (default tune)."
        )] = "tune"  # fmt: skip
    days: Annotated[Days | None, option(
        "Days after which it expires (default: never).")] = None  # fmt: skip


class TokensListRequest(DatabaseFields):
    """List tokens, without their secrets."""


class TokensRevokeRequest(DatabaseFields):
    """Revoke a token; the next request with it is refused, and with the owner's last one his jobs
    end."""

    name: Annotated[Text, option("Name of the token.", argument=True, metavar="NAME")]


class SendRequest(Request):
    """Send measured results that `validate --report-to` saved because it could not send them."""

    file: Annotated[FileName, option("File of the results.", argument=True, metavar="FILE")]
    to: Annotated[Text, option("Destination: the tune's job, SERVER/v1/jobs/ID.", metavar="URL")]
    token_file: TokenFile = None


class ServerFields(Request):
    """The server that is asked."""

    server: Annotated[Text, option("Server: http://HOST:PORT.", metavar="URL")]
    token_file: TokenFile = None


class JobsListRequest(ServerFields):
    """List your jobs of all kinds, newest first."""

    limit: Annotated[int, Field(ge=1, le=200), option(
        "Most jobs (default 20).")] = 20  # fmt: skip
    kind: Annotated[JobKind | None, option("Only jobs of this kind.")] = None
    state: Annotated[JobState | None, option("Only jobs in this state.")] = None
    search: Annotated[Text | None, option(
        "Only jobs whose label or request has each of these words, in small or capital letters.",
        metavar="WORDS")] = None  # fmt: skip


class JobFields(ServerFields):
    """One job."""

    job: Annotated[Text, option("Id of the job.", argument=True, metavar="JOB")]


class JobsShowRequest(JobFields):
    """Show a job: how far it is, and its result when it is done."""


class JobsStopRequest(JobFields):
    """Stop a job and keep what it has: it ends with the best so far."""


class JobsDeleteRequest(JobFields):
    """Delete a job with its result and files; one that runs ends."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or a name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
