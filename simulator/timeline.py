"""Timeline: when each op of a schedule ran, simulated or on ranks, op by op comparable."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.schedule import COMPUTE, Op, OpTemplate, Schedule


class Breakdown(NamedTuple):
    """Parts of the iteration time, all in ns.

    ``comm_ns``: time with at least one collective in flight; ``exposed_comm_ns``: its part with no
    compute op running; ``idle_ns``: time with no op in flight (the host is late).
    """

    makespan_ns: int
    compute_ns: int
    comm_ns: int
    exposed_comm_ns: int
    idle_ns: int

    @property
    def hidden_comm_fraction(self) -> float:
        """Share of communication time that compute hides; 1 without communication."""
        return 1.0 - self.exposed_comm_ns / self.comm_ns if self.comm_ns else 1.0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """``start_ns[i]`` and ``end_ns[i]`` belong to the i-th op in issue order."""

    schedule: Schedule
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Ops in issue order, fully named."""
        return tuple(self.schedule.ops())

    @cached_property
    def templates(self) -> tuple[OpTemplate, ...]:
        """Role, lane and signature of each op, in issue order; ``ops`` has their names too."""
        return tuple(self.schedule.templates())

    @cached_property
    def makespan_ns(self) -> int:
        """End of the last op."""
        return max(self.end_ns, default=0)

    def lane(self, lane: int) -> Iterator[tuple[Op, int, int]]:
        """Yield (op, start, end) of one lane's ops in order; times in ns."""
        for op, start, end in zip(self.ops, self.start_ns, self.end_ns, strict=True):
            if op.lane == lane:
                yield op, start, end

    @cached_property
    def breakdown(self) -> Breakdown:
        """Sums over the iteration."""
        spans = list(zip(self.templates, self.start_ns, self.end_ns, strict=True))
        compute = _union((a, b) for op, a, b in spans if op.lane == COMPUTE)
        comm = self.comm_spans
        busy = _length(_union([*compute, *comm]))
        return Breakdown(
            makespan_ns=self.makespan_ns,
            compute_ns=_length(compute),
            comm_ns=_length(comm),
            exposed_comm_ns=busy - _length(compute),
            idle_ns=self.makespan_ns - busy,
        )

    @cached_property
    def comm_spans(self) -> list[tuple[int, int]]:
        """Disjoint (start, end), in ns and sorted: when collectives are in flight."""
        spans = zip(self.templates, self.start_ns, self.end_ns, strict=True)
        return _union((start, end) for op, start, end in spans if op.lane != COMPUTE)

    @cached_property
    def by_role(self) -> dict[str, int]:
        """Time in flight by role (``attn.qkv``, ``mlp.fc2.ar``), in ns, largest first."""
        sums: dict[str, int] = {}
        for op, start, end in zip(self.templates, self.start_ns, self.end_ns, strict=True):
            sums[op.role] = sums.get(op.role, 0) + end - start
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """Indices of the ops that determine the makespan, in order of time.

        The path goes back from the op that ends last: to an op that ended exactly when this one
        started, on the same lane if possible. If none did, the host delayed this op, and the path
        continues at the latest end before.
        """
        path = []
        current = self._ended[self.makespan_ns][-1] if self.end_ns else -1
        while current >= 0:
            path.append(current)
            current = self._before(current)
        return tuple(reversed(path))

    @cached_property
    def _ended(self) -> dict[int, list[int]]:
        """Indices of the ops that ended at a time, in issue order."""
        ended: defaultdict[int, list[int]] = defaultdict(list)
        for index, end_ns in enumerate(self.end_ns):
            ended[end_ns].append(index)
        return dict(ended)

    @cached_property
    def _end_times(self) -> list[int]:
        return sorted(self._ended)

    def _before(self, index: int) -> int:
        ended = self._ended.get(self.start_ns[index])
        if ended is None:
            position = bisect.bisect_right(self._end_times, self.start_ns[index]) - 1
            if position < 0:
                return -1
            ended = self._ended[self._end_times[position]]
        if len(ended) == 1 and ended[0] != index:
            return ended[0]
        before = [i for i in ended if i != index]
        lane = self.templates[index].lane
        return max(before, key=lambda i: (self.templates[i].lane == lane, i), default=-1)


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint, sorted intervals that cover the same instants."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)
