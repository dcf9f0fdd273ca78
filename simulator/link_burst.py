"""Bursts: a link that was idle carries the beginning of a message at once.

Rates are often kept by a token bucket: of tc's tbf on a testbed, of clouds' networks. While the
link idles the bucket fills, up to ``burst_bytes``; these go out at once, the rest at ``gb_s``. So a
collective behind an idle link saves the time that they would take, at most the time for which the
link idled. Profiles time collectives behind an idle link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.lookup import require_count, require_number, require_positive

LONG_AGO_NS: Final = -(1 << 62)
"""When a link was busy that was not yet used."""


@dataclass(frozen=True, kw_only=True)
class LinkBurst:
    """The bucket of this module's docstring. ``error``: how far the law is off, as a share of the
    most that it saves; ``samples`` is the number of collectives that were timed."""

    burst_bytes: int
    gb_s: float
    error: float
    samples: int

    def __post_init__(self) -> None:
        owner = "collectives.burst"
        require_count(owner, "burst_bytes", self.burst_bytes)
        require_positive(owner, "gb_s", self.gb_s)
        require_number(owner, "error", self.error)
        require_count(owner, "samples", self.samples)

    def saved_us(self, sent_bytes: float) -> float:
        """Return what a rank that sends so much saves behind a link that idled for long."""
        return min(sent_bytes, self.burst_bytes) / self.gb_s / 1e3


def owed_ns(saved_ns: int, idle_ns: int) -> int:
    """Return how much longer a collective takes than behind an idle link, where its lane idled for
    ``idle_ns`` and a long idle time saves ``saved_ns``."""
    return max(0, saved_ns - idle_ns)
