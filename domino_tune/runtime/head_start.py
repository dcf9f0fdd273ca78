"""A head start for the host: the device spins while ops are issued, so that no op waits for it."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

CHUNK_OPS: Final = 48
"""Most ops issued ahead: CUDA's launch queue holds about 1000 entries, and an op takes up to a
dozen kernels and two events."""
LONGEST_NS: Final = 60_000_000


class HeadStart:
    """Spins that grow until the host issues a whole chunk of ops before the device begins it."""

    def __init__(self, spin_ns: int = 3_000_000, chunk_ops: int = CHUNK_OPS) -> None:
        self.spin_ns = spin_ns
        self.chunk_ops = chunk_ops
        self._spun = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._from_op = 0

    def give(self) -> None:
        """Let the idle device spin; work issued from now on runs after the spin."""
        spin(self.spin_ns)
        self._spun.record()
        self._from_op = 0

    def is_spent(self, op: int) -> bool:
        """Return whether the device's queue may be full: ``chunk_ops`` were issued."""
        return op - self._from_op >= self.chunk_ops

    def renew(self) -> bool:
        """Wait for the device and give a new head start. Return whether the last was too short."""
        was_late = self.check()
        torch.cuda.synchronize()
        issued = self._from_op + self.chunk_ops
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
