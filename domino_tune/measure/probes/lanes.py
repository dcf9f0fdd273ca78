"""Two concurrent collectives: how those of tensor and of data parallelism slow each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from domino_tune.measure.probes.traffic import Traffic, zeros_of
from domino_tune.runtime.clock import clock_for
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.session import DTYPES, Session
from simulator.schedule import DP, TP

Span = tuple[int, int]
LEAST: Final = 4
"""All-reduces of the slower lane, after a first one that synchronises the ranks."""
MOST: Final = 100


class LanesProbe:
    """All-reduces of one size back to back on each lane alone, then on both; no compute runs.

    ``shared`` is whether the two groups use the same links: both inside a node, or both between
    nodes. ``factors`` holds a slowdown per measurement, the mean of both lanes and all ranks.
    """

    def __init__(self, session: Session, size_bytes: int) -> None:
        self.session = session
        self.size_bytes = size_bytes
        self.clock = clock_for(session.context.device)
        cluster = session.cluster
        self.shared = (cluster.tp_group[0] > 1) == (cluster.dp_group[0] > 1)
        self.factors: list[float] = []

    def warm_up(self) -> None:
        """Play once, unmeasured: lanes connect on their first collective."""
        self._play({TP: 1, DP: 1})

    def measure(self) -> None:
        """Time each lane alone, then both for about as long."""
        context = self.session.context
        alone_ns = {lane: _mean_ns(self._play({lane: 1 + LEAST})[lane][1:]) for lane in (TP, DP)}
        longest_ns = LEAST * max(alone_ns.values())
        counts = {lane: 1 + min(MOST, math.ceil(longest_ns / ns)) for lane, ns in alone_ns.items()}
        both = self._play(context.all_gather_objects(counts)[0])
        found = [
            _mean_ns(inside) / alone_ns[lane]
            for lane, other in ((TP, DP), (DP, TP))
            if (inside := _within(both[lane][1:], both[other]))
        ]
        ranks = [factor for rank in context.all_gather_objects(found) for factor in rank]
        if ranks:
            self.factors.append(statistics.fmean(ranks))

    def _play(self, counts: dict[int, int]) -> dict[int, list[Span]]:
        """Play ``counts`` all-reduces on the lanes alternately; return their spans, ns, by lane."""
        context = self.session.context
        dtype = DTYPES[self.session.workload.dtype]
        traffic = {
            lane: Traffic(
                context.lanes[lane], all_reduce(zeros_of(self.size_bytes, dtype, context.device))
            )
            for lane in counts
        }
        context.barrier()
        self.clock.start()
        for index in range(max(counts.values())):
            for lane, count in counts.items():
                if index < count:
                    traffic[lane].issue(1)
        for one in traffic.values():
            one.drain()
        self.clock.stop()
        return {
            lane: [(self.clock.at_ns(start), self.clock.at_ns(end)) for start, end in one.spans()]
            for lane, one in traffic.items()
        }

    def row(self) -> dict[str, Any]:
        """Return the results so far."""
        return {
            "shared": self.shared,
            "factor": statistics.median(self.factors),
            "samples": len(self.factors),
        }


def _within(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the spans that lie wholly between the others' first start and last end."""
    first, last = others[0][0], others[-1][1]
    return [(start, end) for start, end in spans if first <= start and end <= last]


def _mean_ns(spans: Sequence[Span]) -> float:
    return max(1.0, statistics.fmean(end - start for start, end in spans))
