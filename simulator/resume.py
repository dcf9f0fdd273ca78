"""Resume: a core that was idle computes slowly at first.

Where a rank waits for a collective its core sleeps: its clock falls, and others use its caches.
Compute after the wait then loses time: more after longer waits, and most of it at once. A wait of
``idle_us`` costs ``extra_us`` in all; each op after it pays d / (d + ``recovery_us``) of the debt
that is left, where d is its own duration. The next wait sets a new debt, unless more is still owed.

GPUs have no such section: a stream that waits does not sleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.curve import between, check_curve
from simulator.lookup import require_count, require_number, require_positive


class ResumeRow(NamedTuple):
    """Compute after a wait of ``idle_us`` takes ``extra_us`` longer in all."""

    idle_us: float
    extra_us: float


@dataclass(frozen=True, kw_only=True)
class ResumeFit:
    """The law of this module's docstring. ``error`` is the relative error of ``extra_us``;
    ``samples`` is the number of measured waits."""

    rows: tuple[ResumeRow, ...]
    recovery_us: float
    error: float
    samples: int

    def __post_init__(self) -> None:
        owner = "resume fit"
        require_positive(owner, "recovery_us", self.recovery_us)
        require_number(owner, "error", self.error)
        require_count(owner, "samples", self.samples, low=0)
        check_curve(owner, ("idle_us", "extra_us"), self.rows)

    def owed_ns(self, idle_ns: int, owed_ns: int) -> int:
        """Return the debt (ns) after a wait of ``idle_ns``, where ``owed_ns`` were owed before
        it."""
        return max(owed_ns, round(between(self.rows, idle_ns / 1000) * 1000))

    def paid_ns(self, owed_ns: int, duration_ns: int) -> int:
        """Return the part of the debt (ns) that an op of ``duration_ns`` pays by taking longer."""
        return owed_ns * duration_ns // (duration_ns + round(self.recovery_us * 1000))


class Resumed:
    """The debt of a compute lane for its last wait; both engines ask it as an op starts.

    Without a law, waits cost nothing. ``owed_ns`` and ``busy_until_ns``, the end of the last op,
    are its whole state.
    """

    def __init__(self, law: ResumeFit | None) -> None:
        self.law = law
        self.owed_ns = 0
        self.busy_until_ns = 0

    def paid_ns(self, now_ns: int, duration_ns: int) -> int:
        """Return how much longer an op takes that starts now."""
        if self.law is None:
            return 0
        if now_ns > self.busy_until_ns:
            self.owed_ns = self.law.owed_ns(now_ns - self.busy_until_ns, self.owed_ns)
        paid_ns = self.law.paid_ns(self.owed_ns, duration_ns) if self.owed_ns else 0
        self.owed_ns -= paid_ns
        return paid_ns
