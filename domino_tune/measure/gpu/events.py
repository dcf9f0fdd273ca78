"""Events that have a time, and calls of an op between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

Work = Callable[[int], object]
"""Plays an op once; takes the number of the call."""


def timed_event() -> torch.cuda.Event:
    """Return an event that has a time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def recorded() -> torch.cuda.Event:
    """Return an event after all work issued to the current stream so far."""
    event = timed_event()
    event.record()
    return event


def since_ns(origin: torch.cuda.Event, event: torch.cuda.Event) -> float:
    """Return the ns between two events that have happened."""
    return 1e6 * float(origin.elapsed_time(event))


def ticks_around(work: Work, calls: int) -> list[torch.cuda.Event]:
    """Launch calls of an op; return the events around them."""
    ticks = [recorded()]
    for call in range(calls):
        work(call)
        ticks.append(recorded())
    return ticks


def spans_ns(ticks: Sequence[torch.cuda.Event]) -> list[float]:
    """Return the ns between each event and the next."""
    return [since_ns(a, b) for a, b in pairwise(ticks)]
