"""The host lane: issues ops one by one, at a cost each, at most ``depth`` compute ops ahead.

h(i) = max(h(i − 1), end of compute op number c − depth) + cost(i), for compute op number c. The
bound is CUDA's launch queue, one a stream; comm streams hold fewer ops than the compute stream, so
theirs is never the one that fills.

Skipping periods. Let the devices' state repeat after a period of T ns and P compute ops, in which
the host spends H. (a) If no op waited for the host in the period, H ≤ T and depth ≥ 2P, none ever
will: issue times fall behind start times by T − H more in each period, and the queue frees places
a whole period before they are needed. (b) If the host's lead over the device is the same as a
period before, ops did wait for it, and depth ≥ P, everything repeats. (c) It also does if the lead
and all the ends that the queue still looks at are the same; that is looked at for micro-batches,
which are longer than the queue. Else nothing is skipped.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from simulator.schedule import COMPUTE


class HostMark(NamedTuple):
    """Where a period begins: entries of the log, host time, ops that waited, device time, and
    for micro-batches the ends in the queue, counted back from now."""

    entries: int
    time_ns: int
    bindings: int
    now_ns: int
    ends: tuple[int, ...] = ()


class Host:
    """Issue times, in the total order. ``depth`` 0: launches are free, the host is not modelled."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.time_ns = 0
        self.bindings = 0
        self.ends: deque[int] = deque(maxlen=depth)
        self.log: list[tuple[int, int]] = []

    def issue(self, lane: int, cost_ns: int) -> int:
        """Issue the next op; returns when that is done. Called when all compute before it ended."""
        self.log.append((lane, cost_ns))
        return self._issue(lane, cost_ns)

    def _issue(self, lane: int, cost_ns: int) -> int:
        if lane == COMPUTE and len(self.ends) == self.depth and self.ends[0] > self.time_ns:
            self.time_ns = self.ends[0]
        self.time_ns += cost_ns
        return self.time_ns

    def ended(self, now_ns: int) -> None:
        """The compute op issued last has ended."""
        self.ends.append(now_ns)

    def binds(self) -> None:
        """An op had to wait for the host."""
        self.bindings += 1

    def mark(self, now_ns: int, *, whole_micro: bool) -> HostMark:
        """Remember where a period begins; ``whole_micro``: it is a micro-batch, not a layer."""
        ends = self._ends_back(now_ns) if whole_micro else ()
        return HostMark(len(self.log), self.time_ns, self.bindings, now_ns, ends)

    def _is_same(self, mark: HostMark, now_ns: int) -> bool:
        """Whether lead and queue are what they were at ``mark``."""
        same_lead = self.time_ns - mark.time_ns == now_ns - mark.now_ns
        return same_lead and bool(mark.ends) and mark.ends == self._ends_back(now_ns)

    def _ends_back(self, now_ns: int) -> tuple[int, ...]:
        return tuple(now_ns - end for end in self.ends)

    def may_skip(self, mark: HostMark, now_ns: int) -> bool:
        """Whether periods like the one since ``mark`` can be added up (module docstring)."""
        if not self.depth:
            return True
        if self._is_same(mark, now_ns):
            return True
        period = self.log[mark.entries :]
        compute_ops = sum(lane == COMPUTE for lane, _ in period)
        elapsed = now_ns - mark.now_ns
        same_lead = self.time_ns - mark.time_ns == elapsed
        if self.bindings == mark.bindings:
            return sum(cost for _, cost in period) <= elapsed and self.depth >= 2 * compute_ops
        return same_lead and self.depth >= compute_ops

    def skip(self, mark: HostMark, times: int, elapsed: int, *, nested: bool) -> None:
        """Bring the host to where ``times`` more periods of ``elapsed`` ns would bring it.

        ``nested``: a loop around this one may skip too, and needs the log of what was skipped.
        """
        if not self.depth:
            return
        period = self.log[mark.entries :]
        if nested:
            self.log += period * times
        self.bindings += (self.bindings - mark.bindings) * times
        if self._is_same(mark, mark.now_ns + elapsed):
            self.time_ns += times * elapsed
            self.ends = deque((end + times * elapsed for end in self.ends), maxlen=self.depth)
            return
        count = sum(lane == COMPUTE for lane, _ in period)
        ends = [self.ends[index - count] for index in range(count)]
        played = min(times, -(-self.depth // count) + 2)
        for number in range(1, played + 1):
            following = iter(ends)
            for lane, cost_ns in period:
                self._issue(lane, cost_ns)
                if lane == COMPUTE:
                    self.ended(next(following) + number * elapsed)
        if times > played:
            self._extrapolate(period, ends, times, played, elapsed)

    def _extrapolate(
        self, period: list[tuple[int, int]], ends: list[int], times: int, played: int, elapsed: int
    ) -> None:
        """The rest in closed form: the unblocked host, or the last period's tightest queue place.

        Places of earlier periods are not tighter: each frees ``elapsed`` earlier and has at most
        ``elapsed`` more of launches behind it.
        """
        rest, count = times - played, len(ends)
        whole, part = divmod(self.depth, count)
        left = sum(cost for _, cost in period)
        latest = self.time_ns + rest * left
        position = 0
        for lane, cost_ns in period:
            if lane == COMPUTE:
                back = whole + (position < part)
                freed = ends[(position - part) % count] + (times - back) * elapsed
                latest = max(latest, freed + left)
                position += 1
            left -= cost_ns
        self.time_ns = latest
        self.ends = deque((end + rest * elapsed for end in self.ends), maxlen=self.depth)
