"""Executors: where jobs run, on this machine or on Dask. May import service.work and base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from domino_tune.base.errors import RunError
from domino_tune.service.work import JobStep, Outcome, Reporter

# A job as an executor runs it ---------------------------------------------------------------------
# Its limits, what its owner wants of it, and how it can end.

Wanted = Literal["go on", "stop", "end"]
"""What a job should do: compute; end with the best so far; end at once, without a result."""
Ask = Callable[[], Wanted]
Tell = Callable[[JobStep], None]
Compute = Callable[[bytes, Reporter], Outcome]
"""What computes a task."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a job's process: ``seconds`` after which it ends with the best so far, and ``grace_s``
    later without; ``memory_bytes`` that it may allocate."""

    seconds: float = 3600.0
    grace_s: float = 60.0
    memory_bytes: int = 4 << 30


class ChildDiedError(RunError):
    """The process that computed this ended before it answered."""


class OverLimitError(RunError):
    """This needs more seconds or memory than its process may have; it would again."""


class NoWorkerError(RunError):
    """Nothing can compute this now, and the text says what is missing. It may be there later."""


class EndedError(Exception):
    """The job was ended because nobody wants it any more, or its executor is closed."""


class JobExecutor(Protocol):
    """Where jobs run."""

    def run(self, task: bytes, limits: Limits, tell: Tell, wanted: Ask) -> Outcome:
        """Compute a job while this blocks; call ``tell`` with its steps, and ask ``wanted`` at
        least once a second.

        Raise the DominoTuneError of the job, OverLimitError, ChildDiedError if its process died,
        NoWorkerError before it begins or if the worker is lost, EndedError, and what ``tell``
        raises.
        """
        ...

    @property
    def lacking(self) -> str:
        """Return what is missing to run a job; empty: nothing."""
        ...

    @property
    def workers(self) -> int:
        """Return the number of workers that jobs can run on."""
        ...

    def check(self) -> None:
        """Look what is missing, if that is due. This may block for some seconds."""
        ...

    def close(self) -> None:
        """Run no more jobs; end those that run."""
        ...
