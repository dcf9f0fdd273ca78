"""Error classes, what each means to callers, what is missing, and text as it may be printed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from simulator.errors import (
    DominoTuneError,
    InfeasiblePlanError,
    InputError,
    MissingSectionError,
    ProfileError,
    ScheduleError,
)


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C in a measured search. The text says where the evidence is, the best plan so far, and
    how to continue."""


class PlanFileError(DominoTuneError):
    """A plan file is truncated, changed by hand, or of an unknown schema version."""


class ToleranceError(DominoTuneError):
    """A measurement is further from its prediction than allowed."""


class RunError(DominoTuneError):
    """A run on real ranks failed."""


class RankKilledError(RunError):
    """A rank was killed by SIGKILL, as the kernel does when memory runs out."""


class NotFoundError(DominoTuneError):
    """The thing asked for does not exist, or belongs to another user."""


class ConflictError(DominoTuneError):
    """The request conflicts with the present state."""


class QuotaError(ConflictError):
    """The owner already stores as much as allowed."""


class KeyReuseError(ConflictError):
    """An idempotency key was used before with another body."""


class QueueFullError(DominoTuneError):
    """The caller has as many waiting and running jobs as allowed."""


class PreconditionError(DominoTuneError):
    """The state has changed since the caller read it (If-Match, If-None-Match)."""


class StorageError(DominoTuneError):
    """The database cannot store or read data: disk full, failing, read-only, or file damaged."""


class UnavailableError(DominoTuneError):
    """The database is busy or unreachable; a later attempt may succeed."""


class AccessError(DominoTuneError):
    """The token is missing or wrong, or its scope is too small."""


class ServiceError(DominoTuneError):
    """The service is unreachable, cannot start, is too busy, or failed."""


class Meaning(NamedTuple):
    """Exit code, HTTP status and title of an error."""

    exit_code: int
    http_status: int
    title: str


MEANINGS: Final[dict[type[BaseException], Meaning]] = {
    InputError: Meaning(2, 422, "Bad input"),
    InfeasiblePlanError: Meaning(2, 422, "Infeasible plan"),
    ScheduleError: Meaning(2, 422, "Bad order"),
    MissingSectionError: Meaning(2, 422, "Missing profile section"),
    ProfileError: Meaning(2, 422, "Bad profile"),
    PlanFileError: Meaning(2, 422, "Bad plan file"),
    NotFoundError: Meaning(2, 404, "Not found"),
    ConflictError: Meaning(2, 409, "Conflict"),
    KeyReuseError: Meaning(2, 422, "Idempotency key used for something else"),
    QuotaError: Meaning(2, 409, "Quota exceeded"),
    QueueFullError: Meaning(6, 429, "Too many jobs"),
    PreconditionError: Meaning(2, 412, "Precondition failed"),
    StorageError: Meaning(5, 507, "Cannot store"),
    UnavailableError: Meaning(5, 503, "Database unavailable"),
    DominoTuneError: Meaning(2, 422, "Bad input"),
    ToleranceError: Meaning(3, 422, "Outside tolerance"),
    RunError: Meaning(4, 500, "Run failed"),
    AccessError: Meaning(2, 401, "No access"),
    ServiceError: Meaning(6, 503, "Service failed"),
    KeyboardInterrupt: Meaning(130, 499, "Interrupted"),
}
BUG: Final = Meaning(1, 500, "A bug in domino_tune")


def meaning_of(error: BaseException) -> Meaning:
    """Return the meaning of the error's class or of its nearest base in MEANINGS, else BUG."""
    return next((MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS), BUG)


def with_cause(error: BaseException) -> str:
    """Return the error's text, then class and text of its cause: for logs, never for callers.

    A database error's cause contributes only the driver's text, without statement and parameters.
    """
    cause = getattr(error.__cause__, "orig", None) or error.__cause__
    if cause is None:
        return str(error)
    return f"{error} [{type(cause).__name__}: {' '.join(str(cause).split())}]"


# Optional dependencies ----------------------------------------------------------------------------
# Which extra of this package installs them.

EXTRAS: Final = {
    "anyio": "api",
    "cachetools": "api",
    "dask": "dask",
    "distributed": "dask",
    "fastapi": "api",
    "h11": "api",
    "httpx": "client",
    "prometheus_client": "api",
    "psutil": "api",
    "psycopg": "postgres",
    "sqlalchemy": "api",
    "starlette": "api",
    "uvicorn": "api",
}
"""Package -> the extra that installs it."""


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Run imports; raise InputError that names the extra of a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        raise InputError(
            f"{what} needs {missing}, which is not installed; get it with "
            f"`pip install 'domino_tune[{EXTRAS[missing]}]'`."
        ) from None


# Text as it may be printed ------------------------------------------------------------------------
# What comes from a file must not command a terminal.

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format (which holds those that reorder a line), separators …"""


def printable(text: str) -> str:
    """Return ``text`` with escapes, as Python writes them, for all that is not seen as itself; line
    breaks stay."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode()
        if one != "\n" and unicodedata.category(one) in _UNSEEN
        else one
        for one in text
    )
