"""The work of the service: what each kind of job computes. May import verbs and below."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

# What a running job reports, and what it hears ----------------------------------------------------
# Its steps, and that it should end.

StopReason = Literal["user", "time"]
"""Why a search ends early: somebody asked for the best so far, or its time is spent."""
PERIOD_S: Final = 0.25
"""Least time between two steps that are told."""


class StopError(Exception):
    """A search ends with the best so far."""


@dataclass(frozen=True, kw_only=True)
class JobStep:
    """How far a job is: ``done`` of ``total`` steps (None: unknown), at most ``left`` of them are
    left; ``text`` describes the last one, ``best`` is the best so far. ``points``: new points of a
    sweep, as (index, JSON)."""

    done: int = 0
    total: int | None = None
    text: str = ""
    left: int | None = None
    best: Mapping[str, Any] | None = None
    points: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A job's result as JSON, its files by name, and its ``last`` step. ``stopped_by``: why the
    result covers only a part of the search."""

    result: bytes
    last: JobStep
    files: Mapping[str, bytes] = field(default_factory=dict)
    stopped_by: StopReason | None = None


class Reporter:
    """A running job's way to those who wait for it: steps go to ``send``, at most one in PERIOD_S
    where ``due`` is asked, and ``hear`` says why to stop."""

    def __init__(
        self, send: Callable[[JobStep], None], hear: Callable[[], StopReason | None]
    ) -> None:
        self._send = send
        self._hear = hear
        self._told_s = 0.0

    @property
    def due(self) -> bool:
        """Whether a step is due to be reported."""
        return time.monotonic() - self._told_s >= PERIOD_S

    @property
    def stop(self) -> StopReason | None:
        """Why the job should end with the best so far; None: it should not."""
        return self._hear()

    def tell(self, step: JobStep) -> None:
        """Tell a step."""
        self._told_s = time.monotonic()
        self._send(step)


class LastLine:
    """A Progress that remembers its last line, and calls ``told`` where a step is due."""

    def __init__(self, reporter: Reporter, told: Callable[[], None]) -> None:
        self.text = ""
        self._reporter = reporter
        self._told = told

    def __call__(self, text: str) -> None:
        """Remember the line."""
        self.text = text
        if self._reporter.due:
            self._told()

    def last(self, text: str) -> None:
        """Remember the line and tell it, due or not: no other will come for a while."""
        self.text = text
        self._told()
