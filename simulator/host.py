"""The host lane: issues ops one by one, each at a cost, at most ``depth`` compute ops ahead.

h(i) = max(h(i − 1), end of compute op number c − depth) + cost(i), for compute op number c.
``depth`` is the length of CUDA's launch queue, one per stream. Comm streams hold fewer ops than the
compute stream, so their queues never fill.

Skipped periods. The devices' state repeats after a period of T ns and P compute ops, in which the
host spends H ns. (a) If no op waited for the host in the period, H ≤ T and depth ≥ 2P, no op ever
will: the host's lead grows by T − H in each period, and the queue frees places a whole period
before they are needed. (b) If ops did wait for the host, its lead over the device is the same as a
period before, and depth ≥ P, everything repeats. (c) Everything also repeats if the lead and all
ends in the queue are the same. This is checked for micro-batches, which are longer than the queue.
In all other cases nothing is skipped.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import NamedTuple

from simulator.schedule import COMPUTE


class HostMark(NamedTuple):
    """The start of a period: entries of the log, host time, ops that waited, device time, and
    for micro-batches the ends in the queue, in ns before now."""

    entries: int
    time_ns: int
    bindings: int
    now_ns: int
    ends: tuple[int, ...] = ()


class Host:
    """Issue times (ns) in the total order. ``depth`` 0: launches are free, there is no host."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.time_ns = 0
        self.bindings = 0
        self.ends: deque[int] = deque(maxlen=depth)
        self.log: list[tuple[int, int]] = []

    def issue(self, lane: int, cost_ns: int) -> int:
        """Issue the next op and return its issue time (ns). All compute before it has ended."""
        self.log.append((lane, cost_ns))
        if lane == COMPUTE and len(self.ends) == self.depth and self.ends[0] > self.time_ns:
            self.time_ns = self.ends[0]
        self.time_ns += cost_ns
        return self.time_ns

    def ended(self, now_ns: int) -> None:
        """Record the end of the compute op issued last."""
        self.ends.append(now_ns)

    def binds(self) -> None:
        """Count an op that had to wait for the host."""
        self.bindings += 1

    def mark(self, now_ns: int, *, whole_micro: bool) -> HostMark:
        """Return the start of a period; ``whole_micro``: it is a micro-batch, not a layer."""
        ends = self._ends_back(now_ns) if whole_micro else ()
        return HostMark(len(self.log), self.time_ns, self.bindings, now_ns, ends)

    def _is_same(self, mark: HostMark, now_ns: int) -> bool:
        """Return whether lead and queue are the same as at ``mark``."""
        same_lead = self.time_ns - mark.time_ns == now_ns - mark.now_ns
        return same_lead and bool(mark.ends) and mark.ends == self._ends_back(now_ns)

    def _ends_back(self, now_ns: int) -> tuple[int, ...]:
        return tuple(now_ns - end for end in self.ends)

    def may_skip(self, mark: HostMark, now_ns: int) -> bool:
        """Return whether periods like the one since ``mark`` can be added up (module docstring)."""
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
        """Advance the host by ``times`` more periods of ``elapsed`` ns.

        ``nested``: an outer loop may skip too, and needs the log of the skipped periods.
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
        self._replay(period, ends, played, elapsed)
        if times > played:
            self._extrapolate(period, ends, times, played, elapsed)

    def _replay(
        self, period: list[tuple[int, int]], ends: list[int], times: int, elapsed: int
    ) -> None:
        """Issue ``times`` more periods, whose compute ops end ``elapsed`` later each.

        An op is issued at the costs up to it and the latest of the times from which the host went
        on without a wait: now, and whenever a place became free, less the costs before.
        """
        later = (end + number * elapsed for number in range(1, times + 1) for end in ends)
        every = [*self.ends, *later]
        once = list(accumulate((cost_ns for _, cost_ns in period), initial=0))
        before = [spent for spent, (lane, _) in zip(once, period, strict=False) if lane == COMPUTE]
        first = max(0, self.depth - len(self.ends))  # the first compute op that needs a place
        went_on, place = self.time_ns, len(self.ends) + first - self.depth
        for number in range(first // len(ends), times):
            start = number * once[-1]
            skipped = max(0, first - number * len(ends))
            for spent in before[skipped:]:
                went_on = max(went_on, every[place] - start - spent)
                place += 1
        self.time_ns = went_on + times * once[-1]
        self.ends = deque(every, maxlen=self.depth)

    def _extrapolate(
        self, period: list[tuple[int, int]], ends: list[int], times: int, played: int, elapsed: int
    ) -> None:
        """Advance over the rest: the host is free, or a queue place of the last period blocks it.

        Places of earlier periods do not block longer: each is freed ``elapsed`` earlier and has at
        most ``elapsed`` more of launches behind it.
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
