"""Clocks that time ops, and the head start that the host needs so that no op waits for it."""

from __future__ import annotations

import itertools
import statistics
import time
from functools import cache
from typing import Final, Protocol

import torch

Tick = int | torch.cuda.Event
"""A moment: host nanoseconds, or an event on a stream."""


class Clock(Protocol):
    """Takes moments while a step plays, and reads them after the step."""

    def start(self) -> None:
        """Begin a step."""
        ...

    def tick(self) -> Tick:
        """Return the current moment of the compute lane. Called before and after each op."""
        ...

    def stop(self) -> None:
        """Wait until all issued ops are done."""
        ...

    def at_ns(self, tick: Tick) -> int:
        """Return the nanoseconds from the start of the step to ``tick``."""
        ...


class HostClock:
    """A clock for CPU, where an op ends with its function. On CUDA it measures issuing ops."""

    def __init__(self) -> None:
        self._origin_ns = 0

    def start(self) -> None:
        """Begin a step."""
        self._origin_ns = time.perf_counter_ns()

    def tick(self) -> int:
        """Return the host's time, ns."""
        return time.perf_counter_ns()

    def stop(self) -> None:
        """Do nothing: all ops are done already."""

    def at_ns(self, tick: Tick) -> int:
        """Return the nanoseconds from the start of the step to ``tick``."""
        assert isinstance(tick, int)
        return tick - self._origin_ns


class NoClock:
    """A clock that takes no moments and never waits: for steps that are captured, not timed."""

    def start(self) -> None:
        """Do nothing."""

    def tick(self) -> int:
        """Return 0: no moment is taken."""
        return 0

    def stop(self) -> None:
        """Do nothing."""

    def at_ns(self, tick: Tick) -> int:
        """Return 0: no moment was taken."""
        return 0


class DeviceClock:
    """A clock for CUDA: events between ops, read when the device is done.

    With a ``head_start`` the device spins before it runs ops. The host's launches can be slower
    than the kernels; the spin puts the host ahead, so that no op's span contains a wait for a
    launch. Then the spans are the device's own times, but the step as a whole contains gaps.
    ``was_late`` is True where the device caught up with the host anyway.
    """

    def __init__(self, head_start: HeadStart | None = None) -> None:
        self.head_start = head_start
        self.elapsed_ns = 0
        self.was_late = False
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        self._origin = timed_event()

    def start(self) -> None:
        """Begin a step on an idle device."""
        torch.cuda.synchronize()
        self._used, self.was_late = 0, False
        self._origin = self._next()
        if self.head_start:
            self.head_start.give()
        self._origin.record()

    def tick(self) -> Tick:
        """Return an event after all work issued to the compute stream so far."""
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
        """Return the ns from the start of the step to ``tick``; events resolve about 0.5 µs."""
        assert not isinstance(tick, int)
        elapsed_ms: float = self._origin.elapsed_time(tick)
        return round(elapsed_ms * 1e6)

    def _next(self) -> torch.cuda.Event:
        """Return an unused event. Events of earlier steps are reused: creating them is slow."""
        if self._used == len(self._events):
            self._events.append(timed_event())
        self._used += 1
        return self._events[self._used - 1]


class WholeClock(DeviceClock):
    """A clock of the whole step (``elapsed_ns``): events between ops cost device time."""

    def tick(self) -> int:
        """Return 0: no moment is taken."""
        return 0

    def at_ns(self, tick: Tick) -> int:
        """Return the ns of the step's end; 0 for every other moment, which is not known."""
        return 0 if isinstance(tick, int) or tick is not self._events[-1] else super().at_ns(tick)


def clock_for(device: torch.device) -> Clock:
    """Return the clock for ops on ``device``."""
    return DeviceClock() if device.type == "cuda" else HostClock()


def probing_clock(device: torch.device) -> Clock:
    """Return a clock of ops' own durations on ``device``, without launches, for steps measured op
    by op. Discard the steps for which ``was_late`` is True."""
    return DeviceClock(HeadStart()) if device.type == "cuda" else HostClock()


def was_late(clock: Clock) -> bool:
    """Return whether ops of the last step waited for their launches despite the head start."""
    return isinstance(clock, DeviceClock) and clock.was_late


@cache
def empty_ns(device: torch.device) -> int:
    """Return the length of an empty span of ``device``'s clock, ns; measured once."""
    return round(empty_span_ns()) if device.type == "cuda" else 0


def empty_span_ns() -> float:
    """Return the median ns between two events with nothing between: part of every span."""
    torch.cuda.synchronize()
    HeadStart().give()
    events = [timed_event() for _ in range(201)]
    for event in events:
        event.record()
    torch.cuda.synchronize()
    spans: list[float] = [1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return statistics.median(spans)


def timed_event() -> torch.cuda.Event:
    """Return an event that has a time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


# A head start for the host ------------------------------------------------------------------------
# The device spins while ops are issued, so that no op waits for it.

CHUNK_OPS: Final = 48
"""Most ops issued ahead: CUDA's launch queue holds about 1000 entries, and an op takes up to a
dozen kernels and two events."""
LONGEST_NS: Final = 60_000_000


class HeadStart:
    """Spins that grow until the host issues a whole chunk of ops before the device begins it."""

    def __init__(self, spin_ns: int = 3_000_000) -> None:
        self.spin_ns = spin_ns
        self._spun = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._from_op = 0

    def give(self) -> None:
        """Let the idle device spin; work issued from now on runs after the spin."""
        spin(self.spin_ns)
        self._spun.record()
        self._from_op = 0

    def is_spent(self, op: int) -> bool:
        """Return whether the device's queue may be full: CHUNK_OPS were issued."""
        return op - self._from_op >= CHUNK_OPS

    def renew(self) -> bool:
        """Wait for the device and give a new head start. Return whether the last was too short."""
        was_late = self.check()
        torch.cuda.synchronize()
        issued = self._from_op + CHUNK_OPS
        self.give()
        self._from_op = issued
        return was_late

    def check(self) -> bool:
        """Return whether the device began before the host had issued all; if so, spin longer."""
        was_late: bool = self._spun.query()  # type: ignore[no-untyped-call]
        if was_late:
            self.spin_ns = min(2 * self.spin_ns, LONGEST_NS)
        return was_late


def spin(duration_ns: int) -> None:
    """Keep one multiprocessor and the current stream busy for about ``duration_ns``."""
    torch.cuda._sleep(round(duration_ns * cycles_per_ns()))  # type: ignore[no-untyped-call]


@cache
def cycles_per_ns() -> float:
    """Return the clock cycles of a multiprocessor per ns; measured once."""
    cycles = 2_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(2):  # the first run loads the kernel
        start.record()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize()
    return cycles / (1e6 * float(start.elapsed_time(end)))
