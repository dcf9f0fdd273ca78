"""Probes of contention: a step while a collective runs back to back, and two collectives at once.

On CPU the collectives are issued ahead. On CUDA a step runs in chunks, each after a head start for
the host (``runtime.clock``) and with its own all-reduces. Ops and collectives count only while
the other kind runs all the time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from domino_tune.base.units import half_spread
from domino_tune.measure.gpu import RATES, AdmissionProbe
from domino_tune.measure.probes import Traffic, call_of, zeros_of
from domino_tune.measure.probes.compute import BURST, TRIES
from domino_tune.runtime.clock import (
    CHUNK_OPS,
    Clock,
    DeviceClock,
    HeadStart,
    HostClock,
    Tick,
    clock_for,
    empty_ns,
)
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes import MOVED_PER_BYTE, Pace
from domino_tune.runtime.lanes.groups import silent_lanes
from domino_tune.runtime.lanes.lane import Handle, Lane, all_reduce
from domino_tune.runtime.lanes.streams import EmulatedStreamLane, EmulatedWire
from domino_tune.runtime.session import DTYPES, Session
from simulator.ops import Collective
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.schedules import fixed_order

# Two concurrent collectives -----------------------------------------------------------------------
# How those of tensor and of data parallelism slow each other.

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


# Probes of contention -----------------------------------------------------------------------------
# A step alone, then while a collective runs back to back.

Message = dict[str, Any]
TRAFFIC_FACTOR: Final = 2.5
"""All-reduces during a step, as a multiple of the step's time alone. A step that takes longer runs
its last ops alone, and these do not count: the result is that of the step's beginning. To last
longer than a step with the smallest messages would take all-reduces worth 14 steps."""
BEGIN_S: Final = 1e-3
"""Time for the lane's thread to get the interpreter and begin."""
MOST_PER_CHUNK: Final = 150
"""Most all-reduces of one chunk: CUDA's launch queue must hold them."""


class ConcurrentProbe(Protocol):
    """Compute and concurrent collectives of one operation, size and CTA count."""

    samples: int

    def warm_up(self) -> None:
        """Reach a steady state."""
        ...

    def measure(self) -> None:
        """Time one pair of steps: alone, and with collectives."""
        ...

    def row(self) -> Message:
        """Return the results so far."""
        ...


def contention_probe(session: Session, plan: SlicePlan, collective: Collective) -> ConcurrentProbe:
    """Return the probe for the session's device; ``collective`` is of the tensor-parallel group."""
    if session.context.device.type == "cuda":
        return StreamContentionProbe(session, plan, collective)
    return HostContentionProbe(session, plan, collective)


def silent_executor(session: Session, plan: SlicePlan, clock: Clock) -> Executor:
    """Return an executor of ``plan`` without communication."""
    return session.executor(plan, fixed_order(plan), silent_lanes(session.context.device), clock)


def contention_message(
    probes: Sequence[ConcurrentProbe],
    both_lanes: Sequence[LanesProbe] = (),
    admission: Sequence[AdmissionProbe] = (),
) -> Message:
    """Return a row per operation, message size and CTA count; under ``lanes``, two concurrent
    collectives; under ``waits``, when a collective gets in."""
    rows = [probe.row() for probe in probes if probe.samples]
    message = {"kind": "contention", "rows": [row for row in rows if row["compute"]]}
    for one in admission:
        message |= one.message()
    found = [probe.row() for probe in both_lanes if probe.factors]
    return {**message, "lanes": found[0]} if found else message


class _Probe:
    """The common part of both devices' probes: samples, each the mean of all ranks."""

    def __init__(self, session: Session, collective: Collective) -> None:
        self.session = session
        self.message = collective
        self.emulated = collective.ranks == 1 and collective.ctas > 0
        self.lane = (
            _emulated(collective)
            if self.emulated
            else session.context.lanes_for(collective.ctas)[TP]
        )
        self.compute: dict[str, list[float]] = defaultdict(list)
        self.collective: list[float] = []
        self.samples = 0

    def _traffic(self) -> Traffic:
        return Traffic(self.lane, call_of(self.message, self.session.context.device))

    def row(self) -> Message:
        """Return the results so far; no ``collective`` where none ran wholly during compute."""
        row: Message = {
            "op": self.message.op,
            "size_bytes": self.message.size_bytes,
            "ctas": self.message.ctas,
            "compute": {kind: statistics.median(found) for kind, found in self.compute.items()},
            "spread": _relative_spread(self.compute.values()),
            "samples": self.samples,
        }
        if self.emulated:
            row["emulated"] = True
        factors = self.collective
        return {**row, "collective": statistics.median(factors)} if factors else row

    def _add_sample(self, compute: dict[str, float], collective: float | None) -> None:
        """Add the kinds that all ranks saw, else all kinds: ranks that saw more slowed less."""
        ranks = self.session.context.all_gather_objects((compute, collective))
        seen = [set(factors) for factors, _ in ranks]
        kinds = set.intersection(*seen) or set.union(*seen)
        for kind in kinds:
            found = [factors[kind] for factors, _ in ranks if kind in factors]
            self.compute[kind].append(statistics.fmean(found))
        known = [factor for _, factor in ranks if factor is not None]
        if known:
            self.collective.append(statistics.fmean(known))
        self.samples += bool(kinds)


def _emulated(collective: Collective) -> Lane:
    """Return a lane for a rank that is alone: its collectives are as fast as their CTAs are over
    NVSwitch."""
    took_ns = round(MOVED_PER_BYTE * collective.size_bytes / (RATES[-1] * collective.ctas))
    return EmulatedStreamLane(lambda call: Pace(took_ns, collective.ctas), _wire())


@cache
def _wire() -> EmulatedWire:
    """Return the one emulated link: its buffers are large."""
    return EmulatedWire()


def _relative_spread(families: Iterable[Sequence[float]]) -> float:
    """Return the half-spread of a family's slowdowns over their mean, averaged over families."""
    found = [half_spread(factors) / statistics.fmean(factors) for factors in families]
    return statistics.fmean(found) if found else 0.0


class TimedOp(NamedTuple):
    """A compute op of a step: its kind, its start and its end, ns."""

    kind: str
    start: int
    end: int


def slowdowns(alone: Sequence[TimedOp], slowed: Sequence[TimedOp], span: Span) -> dict[str, float]:
    """Return the slowdown of each kind of op by all-reduces, which ran during ``span``. Both
    sequences hold the same ops in the same order; only ops wholly within ``span`` count."""
    return _factors((*both, span) for both in zip(alone, slowed, strict=True))


def _factors(ops: Iterable[tuple[TimedOp, TimedOp, Span]]) -> dict[str, float]:
    """Return, by kind, the time of ops within the span of all-reduces over that of the same ops
    alone. An item is (op alone, op with all-reduces, span of the all-reduces)."""
    slow: dict[str, int] = defaultdict(int)
    alone: dict[str, int] = defaultdict(int)
    for before, op, (first, last) in ops:
        if first <= op.start and op.end <= last:
            slow[op.kind] += op.end - op.start
            alone[op.kind] += before.end - before.start
    return {kind: slow[kind] / alone[kind] for kind in slow}


class HostContentionProbe(_Probe):
    """On CPU: compute and all-reduces are timed by one clock, the host's."""

    def __init__(self, session: Session, plan: SlicePlan, collective: Collective) -> None:
        super().__init__(session, collective)
        self.executor = silent_executor(session, plan, HostClock())

    def warm_up(self) -> None:
        """Play once, unmeasured."""
        self._play()

    def measure(self) -> None:
        """Time one pair of steps."""
        context = self.session.context
        alone, alone_ns = self._play()
        one_ns = self._collective_ns()
        needed = max(1, math.ceil(TRAFFIC_FACTOR * (alone_ns[1] - alone_ns[0]) / one_ns))
        traffic = self._traffic()
        traffic.issue(context.all_gather_objects(needed)[0])
        time.sleep(BEGIN_S)
        slowed, (begin, end) = self._play(in_step=False)
        traffic.drain()
        spans = traffic.host_spans()
        during = [_length(span) for span in spans if span[0] > begin and span[1] < end]
        self._add_sample(
            slowdowns(alone, slowed, (spans[0][0], spans[-1][1])),
            statistics.fmean(during) / one_ns if during else None,
        )

    def _collective_ns(self) -> float:
        """Return the mean time of collectives back to back while nothing else runs, ns."""
        self.session.context.barrier()
        return statistics.fmean(self._traffic().host_burst_ns(BURST))

    def _play(self, *, in_step: bool = True) -> tuple[list[TimedOp], Span]:
        """Return the step's ops, and its start and end, on the host's clock."""
        if in_step:
            self.session.context.barrier()
        began = time.perf_counter_ns()
        timeline = self.executor.run_step(*self.session.batch).timeline
        ops = [
            TimedOp(op.signature.kind, began + start, began + end)
            for op, start, end in timeline.lane(COMPUTE)
        ]
        return ops, (began, time.perf_counter_ns())


Bursts = list[list[Span]]
"""All-reduces of each chunk of a step, on the clock of its ops."""
Played = tuple[list[TimedOp], Bursts]


class TrafficStart(HeadStart):
    """A head start after which ``count`` all-reduces begin together with the chunk's ops."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic
        self.count = 0
        self.bursts: list[list[Handle]] = []

    def give(self) -> None:
        """Let the device spin; all-reduces wait for the spin's end, as the next ops do."""
        super().give()
        first = len(self.traffic.handles)
        self.traffic.issue(self.count)
        self.bursts.append(self.traffic.handles[first:])

    def forget(self) -> None:
        """Begin a new step without all-reduces so far."""
        self.traffic.handles.clear()
        self.bursts.clear()


class StreamContentionProbe(_Probe):
    """On CUDA: compute and all-reduces are timed by events, which a device's streams share."""

    def __init__(self, session: Session, plan: SlicePlan, collective: Collective) -> None:
        super().__init__(session, collective)
        self.start = TrafficStart(self._traffic())
        self.clock = DeviceClock(self.start)
        self.executor = silent_executor(session, plan, self.clock)
        self.empty_ns = empty_ns(session.context.device)

    def warm_up(self) -> None:
        """Load the kernels and the lane's communicator, which their first use does."""
        self._all_reduces()
        self._step(1)

    def measure(self) -> None:
        """Time one pair of steps; nothing where the host of some rank is late in all tries."""
        calm, alone = self._in_time(self._all_reduces), self._in_time(lambda: self._step(0))
        if calm is None or alone is None:
            return
        one_ns = max(1.0, statistics.fmean(_length(span) for span in calm[1][0][1:]))
        needed = math.ceil(TRAFFIC_FACTOR * longest_chunk_ns(alone[0]) / one_ns)
        count = min(MOST_PER_CHUNK, max(1 + BURST, needed))
        count = self.session.context.all_gather_objects(count)[0]
        slowed = self._in_time(lambda: self._step(count))
        if slowed is not None:
            self._add_sample(*chunk_slowdowns(alone[0], *slowed, one_ns))

    def _in_time(self, play: Callable[[], Played]) -> Played | None:
        """Return the result of ``play`` once no rank is late; None after TRIES. Ranks agree on the
        length of head starts, so that all chunks begin together."""
        context = self.session.context
        for _ in range(TRIES):
            context.barrier()
            found = play()
            ranks = context.all_gather_objects((self.clock.was_late, self.start.spin_ns))
            self.start.spin_ns = max(spin_ns for _, spin_ns in ranks)
            if not any(late for late, _ in ranks):
                return found
        return None

    def _all_reduces(self) -> Played:
        """Play all-reduces back to back while nothing else runs."""
        self.start.forget()
        self.start.count = 1 + BURST
        self.clock.start()
        self.clock.stop()
        return [], self._bursts()

    def _step(self, count: int) -> Played:
        """Play a step with ``count`` all-reduces during each chunk."""
        self.start.forget()
        self.start.count = count
        timeline = self.executor.run_step(*self.session.batch).timeline
        ops = [
            TimedOp(op.signature.kind, start, max(start + 1, end - self.empty_ns))
            for op, start, end in timeline.lane(COMPUTE)
        ]
        return ops, self._bursts()

    def _bursts(self) -> Bursts:
        return [[self._span(*handle.ticks()) for handle in burst] for burst in self.start.bursts]

    def _span(self, start: Tick, end: Tick) -> Span:
        begin = self.clock.at_ns(start)
        return begin, max(begin + 1, self.clock.at_ns(end) - self.empty_ns)


def chunks_of(ops: Sequence[TimedOp]) -> list[Sequence[TimedOp]]:
    """Return the ops of each head start."""
    return [ops[first : first + CHUNK_OPS] for first in range(0, len(ops), CHUNK_OPS)]


def longest_chunk_ns(ops: Sequence[TimedOp]) -> int:
    """Return the longest time from a chunk's first start to its last end, ns."""
    return max(chunk[-1].end - chunk[0].start for chunk in chunks_of(ops))


def chunk_slowdowns(
    alone: Sequence[TimedOp], slowed: Sequence[TimedOp], bursts: Bursts, one_ns: float
) -> tuple[dict[str, float], float | None]:
    """Return the slowdown of each kind of op by all-reduces, and that of an all-reduce by ops over
    ``one_ns``. Only those that ran wholly during the others count; None where none did.

    ``alone`` and ``slowed`` are the same ops in the same order. The first all-reduce of a burst is
    left out: it may wait for other ranks.
    """
    chunks = list(zip(chunks_of(alone), chunks_of(slowed), bursts, strict=True))
    factors = _factors(
        (before, op, (burst[0][0], burst[-1][1]))
        for alone_chunk, chunk, burst in chunks
        for before, op in zip(alone_chunk, chunk, strict=True)
    )
    during = [
        _length(span)
        for _, chunk, burst in chunks
        for span in burst[1:]
        if chunk[0].start <= span[0] and span[1] <= chunk[-1].end
    ]
    return factors, statistics.fmean(during) / one_ns if during else None


def _length(span: Span) -> int:
    return span[1] - span[0]
