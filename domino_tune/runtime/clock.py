"""When ops ran: the host's clock where ops run as they stand, events where a device runs them."""

from __future__ import annotations

import itertools
import statistics
import time
from functools import cache
from typing import Protocol

import torch

from domino_tune.runtime.head_start import HeadStart

Tick = int | torch.cuda.Event
"""A moment: host nanoseconds, or an event on a stream."""


class Clock(Protocol):
    """Takes moments while a step plays; reads them once it is over."""

    def start(self) -> None:
        """The step begins."""
        ...

    def tick(self) -> Tick:
        """Now, on the compute lane. Asked for twice an op: before it and behind it."""
        ...

    def stop(self) -> None:
        """Every op has been issued: wait until all are done."""
        ...

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began."""
        ...


class HostClock:
    """For CPU: an op is done when its function returns. On CUDA it tells what issuing costs."""

    def __init__(self) -> None:
        self._origin_ns = 0

    def start(self) -> None:
        """The step begins."""
        self._origin_ns = time.perf_counter_ns()

    def tick(self) -> int:
        """Now."""
        return time.perf_counter_ns()

    def stop(self) -> None:
        """Nothing is left to wait for."""

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began."""
        assert isinstance(tick, int)
        return tick - self._origin_ns


class NoClock:
    """Takes no moments and waits for nothing: for steps that are captured, not timed."""

    def start(self) -> None:
        """The step begins."""

    def tick(self) -> int:
        """No moment."""
        return 0

    def stop(self) -> None:
        """Nothing is waited for."""

    def at_ns(self, tick: Tick) -> int:
        """No moment."""
        return 0


class DeviceClock:
    """For CUDA: events between ops, read when the device is done.

    With a ``head_start`` the device spins before it runs anything, so that the host, whose
    launches can be slower than the kernels, is ahead of it and no op's span holds a wait for a
    launch. Spans of ops are then the device's own, and the step as a whole has holes in it.
    ``was_late`` says whether the device caught up with the host anyway.
    """

    def __init__(self, head_start: HeadStart | None = None) -> None:
        self.head_start = head_start
        self.elapsed_ns = 0
        self.was_late = False
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        self._origin = _event()

    def start(self) -> None:
        """The step begins, on an idle device."""
        torch.cuda.synchronize()
        self._used, self.was_late = 0, False
        self._origin = self._next()
        if self.head_start:
            self.head_start.give()
        self._origin.record()

    def tick(self) -> Tick:
        """Behind everything that the compute stream was given so far."""
        if self.head_start and self._used % 2 and self.head_start.is_spent(self._used // 2):
            self.was_late |= self.head_start.renew()
        event = self._next()
        event.record()
        return event

    def stop(self) -> None:
        """Wait for the device."""
        end = self._next()
        end.record()
        if self.head_start:
            self.was_late |= self.head_start.check()
        torch.cuda.synchronize()
        self.elapsed_ns = self.at_ns(end)

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began; events are read to about half a microsecond."""
        assert not isinstance(tick, int)
        elapsed_ms: float = self._origin.elapsed_time(tick)
        return round(elapsed_ms * 1e6)

    def _next(self) -> torch.cuda.Event:
        """An event of this step; those of earlier steps are used again, creating them is slow."""
        if self._used == len(self._events):
            self._events.append(_event())
        self._used += 1
        return self._events[self._used - 1]


class WholeClock(DeviceClock):
    """Times the step as a whole (``elapsed_ns``): events between ops cost the device time."""

    def tick(self) -> int:
        """No moment."""
        return 0

    def at_ns(self, tick: Tick) -> int:
        """Only the step's end is known; every other moment counts as its begin."""
        return 0 if isinstance(tick, int) or tick is not self._events[-1] else super().at_ns(tick)


def clock_for(device: torch.device) -> Clock:
    """The clock of what runs on ``device``."""
    return DeviceClock() if device.type == "cuda" else HostClock()


def probing_clock(device: torch.device) -> Clock:
    """A clock of ops' own durations on ``device``, launches left out: for steps that are measured
    op by op. ``was_late`` says which of them are not to be believed."""
    return DeviceClock(HeadStart()) if device.type == "cuda" else HostClock()


def was_late(clock: Clock) -> bool:
    """Whether the last step's ops waited for their launches although they were not to."""
    return isinstance(clock, DeviceClock) and clock.was_late


@cache
def empty_ns(device: torch.device) -> int:
    """What a span of ``device``'s clock holds though nothing was in it; measured once."""
    return round(empty_span_ns()) if device.type == "cuda" else 0


def empty_span_ns(pairs: int = 200) -> float:
    """What two events with nothing between them are apart: part of every span, median."""
    torch.cuda.synchronize()
    HeadStart().give()
    events = [_event() for _ in range(pairs + 1)]
    for event in events:
        event.record()
    torch.cuda.synchronize()
    spans: list[float] = [1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return statistics.median(spans)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
