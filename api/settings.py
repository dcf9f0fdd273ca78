"""The service's settings, as ``serve`` writes them into its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from domino_tune.requests.service import is_loopback
from domino_tune.service.executors import Limits
from domino_tune.service.jobs.retention import Keep
from domino_tune.service.serving import SETTINGS
from domino_tune.store.files import parse_json
from domino_tune.store.parsing import parse
from simulator.errors import InputError

VARIABLE: Final = SETTINGS
"""Environment variable that holds the settings as one JSON object."""
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings; times in seconds, sizes in bytes.

    ``bind``: the address to listen on, without its port. ``executor``: where jobs run, ``local``
    or ``dask://host:port``. ``workers``: jobs that run at once; 0: this replica only answers
    requests. ``quick_workers``: processes that compute simulations and what-ifs.
    ``rate_per_s`` and ``burst``: limits for the requests of one token, by replica.
    ``most_queued``: limit of one owner's unfinished jobs. ``job_s``: computing time of a job, which
    then ends with the best so far; ``job_bytes``: memory that it may allocate.
    ``keep_s``, ``keep_jobs``, ``keep_bytes``: for how long an owner's finished jobs are kept, how
    many, and how much of one owner in all. ``quick_s``: time to compute what is not a job.
    ``notice_s``: how long /readyz answers 503 before the server stops to listen. ``drain_s``: time
    to give running jobs back after that.
    Raise InputError for values that the service cannot run with.
    """

    database_url: str = field(repr=False)
    executor: str = "local"
    workers: int = 1
    quick_workers: int = 2
    bind: str = "127.0.0.1"
    tokens_required: bool = False
    rate_per_s: float = 100.0
    burst: int = 200
    most_queued: int = 200
    job_s: float = Limits.seconds
    job_bytes: int = Limits.memory_bytes
    keep_s: float = Keep.seconds
    keep_jobs: int = Keep.jobs
    keep_bytes: int = Keep.size_bytes
    body_bytes: int = 1 << 20
    upload_bytes: int = 16 << 20
    quick_s: float = 20.0
    notice_s: float = 1.0
    drain_s: float = 6.0

    def __post_init__(self) -> None:
        for name in ("workers", "notice_s"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be ≥ 0, got {getattr(self, name)}; correct it.")
        for name in (
            "quick_workers", "rate_per_s", "burst", "most_queued", "body_bytes", "upload_bytes",
            "quick_s", "drain_s", "job_s", "job_bytes", "keep_s", "keep_jobs", "keep_bytes",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, got {getattr(self, name)}; correct it.")
        if not (self.tokens_required or is_loopback(self.bind)):
            raise InputError(
                f"Listening on {self.bind} lets others in: require tokens (`tokens add` makes "
                "one), or listen on 127.0.0.1."
            )

    @property
    def keep(self) -> Keep:
        """Return what is kept of each owner."""
        return Keep(seconds=self.keep_s, jobs=self.keep_jobs, size_bytes=self.keep_bytes)

    @property
    def limits(self) -> Limits:
        """Return the limits of a job."""
        return Limits(seconds=self.job_s, memory_bytes=self.job_bytes)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the host names that a request may use; empty where any name is allowed.

        Without tokens, a web page must not reach the service by pointing its own name at it.
        """
        return () if self.tokens_required else (*LOCAL_NAMES, self.bind)

    def to_json(self) -> str:
        """Return the JSON that ``from_environment`` reads."""
        return json.dumps(asdict(self), allow_nan=False)


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this process. Raise InputError where they are missing or bad."""
    text = environment.get(VARIABLE)
    if text is None:
        raise InputError(f"${VARIABLE} is not set; start the service with `domino-tune serve`.")
    content = parse_json(text.encode(), source=f"${VARIABLE}", error=InputError)
    return parse(Settings, content, source=f"${VARIABLE}", error=InputError)
