"""When ops ran: the host's clock where ops run as they stand, events where a device runs them."""

from __future__ import annotations

import time
from typing import Protocol

import torch

Tick = int | torch.cuda.Event
"""A moment: host nanoseconds, or an event on a stream."""


class Clock(Protocol):
    """Takes moments while a step plays; reads them once it is over."""

    def start(self) -> None:
        """The step begins."""
        ...

    def tick(self) -> Tick:
        """Now, on the compute lane."""
        ...

    def stop(self) -> None:
        """Every op has been issued: wait until all are done."""
        ...

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began."""
        ...


class HostClock:
    """For CPU: an op is done when its function returns."""

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


class DeviceClock:
    """For CUDA: events between ops, read when the device is done."""

    def __init__(self) -> None:
        self._origin = _event()

    def start(self) -> None:
        """The step begins, on an idle device."""
        torch.cuda.synchronize()
        self._origin = _event()
        self._origin.record()

    def tick(self) -> torch.cuda.Event:
        """Behind everything that the compute stream was given so far."""
        event = _event()
        event.record()
        return event

    def stop(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began; events are read to about half a microsecond."""
        assert not isinstance(tick, int)
        elapsed_ms: float = self._origin.elapsed_time(tick)
        return round(elapsed_ms * 1e6)


def clock_for(device: torch.device) -> Clock:
    """The clock of what runs on ``device``."""
    return DeviceClock() if device.type == "cuda" else HostClock()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
