"""Jobs: submitted, leased, run and read. May import service.work, executors, sql and below."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, or_

from domino_tune.base.errors import NotFoundError
from domino_tune.requests.service import JobKind, JobState
from domino_tune.service.encoding import json_text, sha256_hex
from domino_tune.service.sql.tables import jobs
from domino_tune.service.work import StopReason

# A job --------------------------------------------------------------------------------------------
# Its request, its state and progress, and its outcome.

ENDED: Final[frozenset[JobState]] = frozenset({"done", "failed"})
OPEN: Final[frozenset[JobState]] = frozenset({"queued", "running"})
_ID: Final = re.compile(r"job_[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """``done`` of ``total`` steps (None: unknown), and a line of text for people.

    ``left``: most steps that are left (None: unknown). ``computed_s``: seconds that this attempt
    has computed, of those that a job may take.
    """

    done: int = 0
    total: int | None = None
    text: str = ""
    left: int | None = None
    computed_s: float = 0.0

    @property
    def eta_s(self) -> float | None:
        """Return an estimate of the seconds of computing that are left; None if unknown."""
        if self.left is None or not self.done:
            return None
        return self.left * self.computed_s / self.done


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to submit. ``task`` holds everything that its result depends on, as canonical bytes.
    With a ``result`` it is done as soon as it is stored."""

    kind: JobKind
    owner: str
    request: Mapping[str, Any]
    task: bytes = b""
    result: bytes | None = None

    @property
    def task_digest(self) -> str:
        """Return the SHA-256 of the task in hexadecimal."""
        return sha256_hex(self.task)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as the database holds it; times in seconds since 1970.

    ``attempts`` counts the claims that were not released: how often it began. ``fence`` grows with
    every claim; only the worker with the newest one may write. ``version`` grows with every change
    that a reader can see. ``error`` is the problem (RFC 9457) of a failed job.
    ``stopped_by``: why the search ends or ended early. ``label``: its owner's name for it.
    """

    id: str
    kind: JobKind
    owner: str
    state: JobState
    request: dict[str, Any]
    task_digest: str
    attempts: int
    fence: int
    progress: JobProgress = field(default_factory=JobProgress)
    best: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    created_s: float
    started_s: float | None = None
    finished_s: float | None = None
    stopped_by: StopReason | None = None
    label: str | None = None
    version: int

    @property
    def ended(self) -> bool:
        """Return whether the job is done or failed, and will not change again."""
        return self.state in ENDED

    @classmethod
    def of(cls, row: Row[Any]) -> JobRecord:
        """Return the job in a row of ``tables.jobs``."""
        plain = {item.name: getattr(row, item.name) for item in fields(cls)}
        for name in ("request", "progress", "best", "error"):
            plain[name] = json.loads(plain[name]) if plain[name] else None
        return cls(**{**plain, "progress": JobProgress(**(plain["progress"] or {}))})


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a sweep: its index among the values, from 0, and its JSON."""

    index: int
    body: bytes


def new_id() -> str:
    """Return an id that sorts by creation: nanoseconds since 1970, then random bits, in hex."""
    return f"job_{time.time_ns():016x}{secrets.token_hex(8)}"


def check_id(identity: str) -> str:
    """Return ``identity``. Raise NotFoundError if it cannot be an id."""
    if not _ID.fullmatch(identity):
        raise no_such_job(identity)
    return identity


def no_such_job(identity: str) -> NotFoundError:
    """Return the error for a job that does not exist or belongs to another owner: both read the
    same."""
    return NotFoundError(f"There is no job {identity[:64]!r}; the list of jobs has yours.")


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Conditions that jobs must meet; None: any value. Times are seconds since 1970: jobs created
    at ``from_s`` or later, and before ``until_s``. ``words``: each occurs in label or request, in
    small or capital letters, or is the job's id. ``of``: the job that a validation is of."""

    kind: JobKind | None = None
    state: JobState | None = None
    model: str | None = None
    profile: str | None = None
    words: str | None = None
    from_s: float | None = None
    until_s: float | None = None
    of: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on rows of ``tables.jobs``."""
        found: list[ColumnElement[bool]] = []
        for name in ("kind", "state"):
            if (value := getattr(self, name)) is not None:
                found.append(jobs.c[name] == value)
        for name in ("model", "profile", "of"):
            if (value := getattr(self, name)) is not None:
                # Compact JSON: quotes inside strings are escaped, so that only the key matches.
                member = json_text({name: value})[1:-1]
                found.append(jobs.c.request.contains(member, autoescape=True))
        for word in (self.words or "").split():
            in_text = jobs.c.searched.contains(_folded(word), autoescape=True)
            found.append(or_(in_text, jobs.c.id == json_text(word)[1:-1]))
        if self.from_s is not None:
            found.append(jobs.c.created_s >= self.from_s)
        if self.until_s is not None:
            found.append(jobs.c.created_s < self.until_s)
        return found


EVERY = JobFilter()


def searched(request: Mapping[str, Any], label: str | None = None) -> str:
    """Return the text in which ``words`` are searched: the label, and the request's values, each
    after its name. It is built here, since databases fold letters in different ways."""
    return _folded("\n".join([label or "", *_lines(request)]))


def _lines(request: Mapping[str, Any]) -> Iterator[str]:
    for name, value in request.items():
        if isinstance(value, Mapping):
            yield from _lines(value)
        elif isinstance(value, list | tuple):
            yield from (f"{name} {one}" for one in value)
        else:
            yield f"{name} {value}"


def _folded(text: str) -> str:
    """Return the text without capital letters, in ASCII as JSON writes it."""
    return json_text(text.casefold())[1:-1]
