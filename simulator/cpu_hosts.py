"""CPU hosts as ranks: they are unequal, and cores and links that were idle behave otherwise."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from simulator.errors import ProfileError
from simulator.lookup import ABSENT_IF_EMPTY, require_count, require_number, require_positive


def between(rows: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at ``x``: linear between rows, from (0, 0) on; constant after the last row."""
    if not rows:
        return 0.0
    index = bisect_left(rows, (x, 0.0))
    if index == len(rows):
        return rows[-1][1]
    low_x, low_y = rows[index - 1] if index else (0.0, 0.0)
    high_x, high_y = rows[index]
    return low_y + (x - low_x) / (high_x - low_x) * (high_y - low_y)


def check_curve(owner: str, names: tuple[str, str], rows: Sequence[tuple[float, float]]) -> None:
    """Raise ProfileError unless each x is positive and above the one before, and no y negative."""
    for x, y in rows:
        require_positive(owner, names[0], x)
        require_number(owner, names[1], y)
    lengths = [x for x, _ in rows]
    if lengths != sorted(set(lengths)):
        raise ProfileError(f"{owner}: rows must be sorted by {names[0]}, each length once.")


# Skew ---------------------------------------------------------------------------------------------
# Ranks of a group are never equally fast, and a collective waits for the last of them.
#
# Measured quantities describe it. A whole step takes longer than its ops' rows add up to, by the
# share ``step_excess``: rows are medians, durations lean to the long side, and the median of a sum
# is near the sum of the means. Over a whole step the slowest rank needs ``slowest_factor`` times
# the mean of all ranks; the step takes as long as it. Over a shorter stretch another rank may be
# slower. The collective at the end of the stretch then waits for it: on the rank that is slowest
# over the step, by the ``wait_us`` of the stretch's length. Compute beside a collective differs
# between ranks far more than compute alone, where packets are moved by whichever core is at it; so
# its length counts apart. Both parts of a wait are chance, and independent: they add up as the
# roots of squares do.


class SkewRow(NamedTuple):
    """Mean wait of a collective, ``wait_us``, after ``compute_us`` of compute."""

    compute_us: float
    wait_us: float


@dataclass(frozen=True, kw_only=True)
class SkewFit:
    """The law stated above: linear between rows, from (0, 0) on; constant after the
    last row. ``rows`` are of compute alone, ``beside`` of compute beside collectives. ``error`` is
    the relative error of ``slowest_factor`` from step to step; ``samples`` is the number of
    measured steps, 0 if unknown."""

    slowest_factor: float
    step_excess: float = field(default=0.0, metadata=ABSENT_IF_EMPTY)
    rows: tuple[SkewRow, ...] = ()
    beside: tuple[SkewRow, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)
    error: float
    samples: int = field(default=0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "skew fit"
        require_number(owner, "slowest_factor", self.slowest_factor, low=1.0)
        require_number(owner, "step_excess", self.step_excess)
        require_number(owner, "error", self.error)
        require_count(owner, "samples", self.samples, low=0)
        for rows in (self.rows, self.beside):
            check_curve(owner, ("compute_us", "wait_us"), rows)

    @property
    def compute_factor(self) -> float:
        """Return how much longer the slowest rank's step is than its ops' rows add up to."""
        return self.slowest_factor * (1.0 + self.step_excess)

    def wait_us(self, alone_us: float, beside_us: float = 0.0) -> float:
        """Return the mean wait (µs) of a collective after ``alone_us`` of compute alone and
        ``beside_us`` of compute beside collectives."""
        return math.hypot(between(self.rows, alone_us), between(self.beside, beside_us))


# Resume -------------------------------------------------------------------------------------------
# A core that was idle computes slowly at first.
#
# Where a rank waits for a collective its core sleeps: its clock falls, and others use its caches.
# Compute after the wait then loses time: more after longer waits, and most of it at once. A wait of
# ``idle_us`` costs ``extra_us`` in all; each op after it pays d / (d + ``recovery_us``) of the debt
# that is left, where d is its own duration. The next wait sets a new debt, unless more is still
# owed.
#
# GPUs have no such section: a stream that waits does not sleep.


class ResumeRow(NamedTuple):
    """Compute after a wait of ``idle_us`` takes ``extra_us`` longer in all."""

    idle_us: float
    extra_us: float


@dataclass(frozen=True, kw_only=True)
class ResumeFit:
    """The law stated above. ``error`` is the relative error of ``extra_us``;
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

    def off(self, factor: float) -> ResumeFit:
        """Return the law with ``factor`` times the debts."""
        rows = tuple(row._replace(extra_us=factor * row.extra_us) for row in self.rows)
        return replace(self, rows=rows)

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


# Idle lanes ---------------------------------------------------------------------------------------
# The first collective after a pause saves some of its time, and pays for waking.
#
# Profiles time collectives on a lane that idled before, and again right after each other. Two
# things differ. Rates of links are often kept by a token bucket: of tc's tbf on a testbed, of
# clouds' networks. While the link idles the bucket fills, up to ``burst_bytes``; these go out at
# once, so a collective saves the time that they would take, at most the time for which the link
# idled. And where a lane is a thread, it sleeps meanwhile: it is woken, and finds its code and its
# message in no cache. That takes ``wake_us``, at most the time for which it slept.

LONG_AGO_NS: Final = -(1 << 62)
"""When a lane was busy that was not yet used."""


@dataclass(frozen=True, kw_only=True)
class IdleLane:
    """The law stated above. ``burst_us`` is the time that a whole bucket takes at the
    link's rate. ``error``: how far the law is off, as a share of both times; ``samples`` is the
    number of collectives that were timed."""

    burst_bytes: int
    burst_us: float
    wake_us: float
    error: float
    samples: int

    def __post_init__(self) -> None:
        owner = "collectives.idle_lane"
        require_count(owner, "burst_bytes", self.burst_bytes)
        for name in ("burst_us", "wake_us", "error"):
            require_number(owner, name, getattr(self, name))
        require_count(owner, "samples", self.samples)

    def saved_us(self, sent_bytes: float) -> float:
        """Return the µs that a rank saves when it sends ``sent_bytes`` over a link that idled for
        long."""
        return self.burst_us * min(1.0, sent_bytes / self.burst_bytes)


class IdleTimes(NamedTuple):
    """What a collective saves after its lane idled for long, and what it then spends on waking,
    ns."""

    saved_ns: int
    wake_ns: int

    @property
    def least_ns(self) -> int:
        """Return the least ``more_ns``, which goes from ``saved_ns`` to ``wake_ns`` as the lane
        idles."""
        return min(self)

    def more_ns(self, idle_ns: int) -> int:
        """Return how many ns longer a collective takes after its lane idled for ``idle_ns`` than
        one that saves all it can on an awake lane."""
        return max(0, self.saved_ns - idle_ns) + min(self.wake_ns, idle_ns)


NO_TIMES: Final = IdleTimes(0, 0)


# All of them --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CpuHosts:
    """The laws that a machine of CPU hosts has, those of them that its profile knows; a machine of
    GPUs has none."""

    skew: SkewFit | None = None
    resume: ResumeFit | None = None
    idle_lane: IdleLane | None = None

    @property
    def exist(self) -> bool:
        """Whether there is any: they change a program's steps, not only their durations."""
        return self != NO_HOSTS

    @property
    def compute_factor(self) -> float:
        """How much longer the slowest rank's step is than its ops' rows add up to."""
        return self.skew.compute_factor if self.skew else 1.0

    @property
    def skew_rows(self) -> tuple[tuple[SkewRow, ...], tuple[SkewRow, ...]]:
        """Waits after compute alone, and after compute beside collectives."""
        return (self.skew.rows, self.skew.beside) if self.skew else ((), ())

    def pace(self, factor: Callable[[float], float]) -> float:
        """Return by what compute takes longer where the pace of the slowest rank is off; ``factor``
        of a law's error says by how much."""
        return factor(self.skew.error) if self.skew else 1.0

    def with_waits_off(self, factor: Callable[[float], float]) -> CpuHosts:
        """Return the laws where what waits cost is off."""
        resume = self.resume
        return self if resume is None else replace(self, resume=resume.off(factor(resume.error)))


NO_HOSTS: Final = CpuHosts()
