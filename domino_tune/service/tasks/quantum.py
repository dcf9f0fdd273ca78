"""A quantum of a job: its time budget, and what it gives back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

StopReason = Literal["user", "time"]
"""Why a search ends before its end: somebody asked for the best so far, or its time is spent."""


class PausedError(Exception):
    """The quantum's time is over."""


class Quantum:
    """Let a quantum take ``budget_s`` seconds, counted from its first step, and at least that step.

    Earlier work, such as replaying what previous quanta found, is not counted: in a long job it
    could fill every quantum.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._end_s = math.inf
        self.steps = 0

    def __call__(self) -> None:
        """Count a finished step. Raise PausedError when the time is over."""
        self.steps += 1
        if self.steps == 1:
            self._end_s = time.monotonic() + self._budget_s
        if self.over:
            raise PausedError

    @property
    def over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self._end_s


@dataclass(frozen=True, kw_only=True)
class QuantumResult:
    """``state`` is where the next quantum starts; with a ``result`` the job is done.

    ``done`` of ``total`` steps (None: unknown); ``text`` says what was done last, ``best`` is the
    best so far. ``left``: at most so many steps are left (None: unknown). ``points``: new points of
    a sweep, as (index, JSON). ``artifacts`` by name. ``stopped_by``: why the result is that of a
    part of the search. ``seconds``: how long the quantum took; no result depends on it.
    """

    done: int
    total: int | None = None
    text: str = ""
    left: int | None = None
    best: Mapping[str, Any] | None = None
    points: tuple[tuple[int, bytes], ...] = ()
    state: bytes = b""
    result: bytes | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    stopped_by: StopReason | None = None
    seconds: float = 0.0


class LastProgress:
    """A Progress that keeps its last line."""

    text = ""

    def __call__(self, text: str) -> None:
        """Keep the line."""
        self.text = text
