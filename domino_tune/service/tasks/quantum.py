"""A quantum of a job: its time budget and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

StopReason = Literal["user", "time"]
"""Why a search ends early: somebody asked for the best so far, or its time is spent."""


class PausedError(Exception):
    """The quantum's time is over."""


class Quantum:
    """Lets a quantum take ``budget_s`` seconds, counted from the end of its first step.

    Earlier work, such as replaying the results of previous quanta, does not count: in a long job it
    could fill every quantum.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._end_s = math.inf
        self.steps = 0

    def __call__(self) -> None:
        """Count a finished step. Raise PausedError if the time is over."""
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
    """The state after a quantum, from which the next one starts; with a ``result`` the job is done.

    ``done`` of ``total`` steps (None: unknown); ``text`` describes the last step, ``best`` is the
    best so far. ``left``: most steps that are left (None: unknown). ``points``: new points of a
    sweep, as (index, JSON). ``artifacts`` by name. ``stopped_by``: why the result covers only a
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
    """A Progress that remembers its last line."""

    text = ""

    def __call__(self, text: str) -> None:
        """Remember the line."""
        self.text = text
