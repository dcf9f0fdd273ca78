"""Idle lanes: the first collective after a pause saves some of its time, and pays for waking.

Profiles time collectives on a lane that idled before, and again right after each other. Two things
differ. Rates of links are often kept by a token bucket: of tc's tbf on a testbed, of clouds'
networks. While the link idles the bucket fills, up to ``burst_bytes``; these go out at once, so a
collective saves the time that they would take, at most the time for which the link idled. And where
a lane is a thread, it sleeps meanwhile: it is woken, and finds its code and its message in no
cache. That takes ``wake_us``, at most the time for which it slept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from simulator.lookup import require_count, require_number

LONG_AGO_NS: Final = -(1 << 62)
"""When a lane was busy that was not yet used."""


@dataclass(frozen=True, kw_only=True)
class IdleLane:
    """The law of this module's docstring. ``burst_us`` is the time that a whole bucket takes at the
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
    def matter_for_ns(self) -> int:
        """Return the idle time (ns) beyond which more of it changes nothing."""
        return max(self)

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
