"""What each error means to the outside: one dict, class -> (exit code, HTTP status, title)."""

from __future__ import annotations

from typing import Final, NamedTuple

from simulator.errors import (
    DominoTuneError,
    InfeasiblePlanError,
    InputError,
    MissingSectionError,
    ProfileError,
    ScheduleError,
)


class PlanFileError(DominoTuneError):
    """A plan file is truncated, tampered with, or of an unknown schema version."""


class ToleranceError(DominoTuneError):
    """A measurement is further from its prediction than allowed."""


class RunError(DominoTuneError):
    """A run on real ranks failed."""


class RankKilledError(RunError):
    """A rank was killed by SIGKILL, as the kernel does where memory runs out."""


class NotFoundError(DominoTuneError):
    """There is no such thing, or it is another user's."""


class ConflictError(DominoTuneError):
    """What is asked for does not go together with what is there."""


class KeyReuseError(ConflictError):
    """An idempotency key came again with another body."""


class QueueFullError(DominoTuneError):
    """As many of a caller's jobs wait or run as may."""


class PreconditionError(DominoTuneError):
    """What is there is no longer what the caller believes it to be (If-Match, If-None-Match)."""


class StorageError(DominoTuneError):
    """The database cannot keep or read data: disk full, failing, read-only, or file damaged."""


class UnavailableError(DominoTuneError):
    """The database is busy or cannot be reached; the same may succeed a little later."""


class AccessError(DominoTuneError):
    """The service wants a token: none was given, or one that is wrong or allows too little."""


class ServiceError(DominoTuneError):
    """The service cannot be reached or started, is too busy, or failed."""


class Meaning(NamedTuple):
    """How an error leaves the program and the service."""

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
    """The meaning of the error's own class, or of its nearest base in MEANINGS; else a bug."""
    return next((MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS), BUG)


def with_cause(error: BaseException) -> str:
    """What it says, then the class and text of what it came from: for logs, never for callers.

    Of a database driver it is what the driver said, without the statement and its parameters.
    """
    cause = getattr(error.__cause__, "orig", None) or error.__cause__
    if cause is None:
        return str(error)
    return f"{error} [{type(cause).__name__}: {' '.join(str(cause).split())}]"
