"""Probes of contention: a step alone, then beside all-reduces back to back.

On CPU the all-reduces are issued ahead. On CUDA a step runs in chunks, each behind a head start
for the host (``runtime.head_start``), and every chunk has all-reduces of its own beside it. What of
both did not run beside the other is left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from domino_tune.base.medians import half_spread
from domino_tune.measure.probes.compute import BURST, TRIES
from domino_tune.measure.probes.lanes import LanesProbe
from domino_tune.measure.probes.traffic import Traffic
from domino_tune.runtime.clock import Clock, DeviceClock, HostClock, Tick, empty_ns
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.head_start import CHUNK_OPS, HeadStart
from domino_tune.runtime.lanes.lane import Handle
from domino_tune.runtime.lanes.silent import silent_lanes
from domino_tune.runtime.session import DTYPES, Session
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, TP
from simulator.schedules import fixed_order

Message = dict[str, Any]
Span = tuple[int, int]
BESIDE: Final = 2.5
"""All-reduces beside a step, as a multiple of what the step takes alone. Where it takes longer than
that beside them, its last ops run alone and do not count: what is known is of the step's beginning.
To outlast it beside the smallest messages would take all-reduces worth 14 steps."""
BEGIN_S: Final = 1e-3
"""The lane's thread needs the interpreter for a moment to begin."""
MOST_BESIDE: Final = 150
"""All-reduces beside one chunk at most: CUDA's launch queue must hold them."""


class ContentionProbe(Protocol):
    """Compute and all-reduces of one size and CTA count beside each other."""

    samples: int

    def warm_up(self) -> None:
        """Come to a steady state."""
        ...

    def measure(self) -> None:
        """One pair of steps: alone, and beside."""
        ...

    def row(self) -> Message:
        """What is known so far."""
        ...


def contention_probe(
    session: Session, plan: SlicePlan, size_bytes: int, ctas: int
) -> ContentionProbe:
    """The probe for the session's device. ``ctas`` 0 is what the backend chooses."""
    if session.context.device.type == "cuda":
        return StreamContentionProbe(session, plan, size_bytes, ctas)
    return HostContentionProbe(session, plan, size_bytes, ctas)


def silent_executor(session: Session, plan: SlicePlan, clock: Clock) -> Executor:
    """An executor of ``plan`` without communication."""
    return session.executor(plan, fixed_order(plan), silent_lanes(session.context.device), clock)


def contention_message(
    probes: Sequence[ContentionProbe], both_lanes: Sequence[LanesProbe] = ()
) -> Message:
    """One row a message size and CTA count; under ``lanes``, two collectives at once."""
    rows = [probe.row() for probe in probes if probe.samples]
    message = {"kind": "contention", "rows": [row for row in rows if row["compute"]]}
    found = [probe.row() for probe in both_lanes if probe.factors]
    return {**message, "lanes": found[0]} if found else message


class _Probe:
    """What both devices' probes keep: samples, each the mean of all ranks."""

    def __init__(self, session: Session, plan: SlicePlan, size_bytes: int, ctas: int) -> None:
        self.session = session
        self.plan = plan
        self.size_bytes = size_bytes
        self.ctas = ctas
        self.lane = session.context.lanes_for(ctas)[TP]
        self.dtype = DTYPES[session.workload.dtype]
        self.compute: dict[str, list[float]] = defaultdict(list)
        self.stretch: list[float] = []
        self.samples = 0

    def row(self) -> Message:
        """What is known so far; without ``collective`` where none ran beside compute alone."""
        row: Message = {
            "size_bytes": self.size_bytes,
            "ctas": self.ctas,
            "compute": {kind: statistics.median(found) for kind, found in self.compute.items()},
            "spread": _relative_spread(self.compute.values()),
            "samples": self.samples,
        }
        return {**row, "collective": statistics.median(self.stretch)} if self.stretch else row

    def _keep(self, compute: dict[str, float], stretch: float | None) -> None:
        """What all ranks saw, if there is any such: one that came further was slowed less."""
        ranks = self.session.context.all_gather_objects((compute, stretch))
        seen = [set(factors) for factors, _ in ranks]
        kinds = set.intersection(*seen) or set.union(*seen)
        for kind in kinds:
            found = [factors[kind] for factors, _ in ranks if kind in factors]
            self.compute[kind].append(statistics.fmean(found))
        known = [factor for _, factor in ranks if factor is not None]
        if known:
            self.stretch.append(statistics.fmean(known))
        self.samples += bool(kinds)


def _relative_spread(families: Iterable[Sequence[float]]) -> float:
    """Half-spread of a family's slow-downs over their mean, on average over families."""
    found = [half_spread(factors) / statistics.fmean(factors) for factors in families]
    return statistics.fmean(found) if found else 0.0


class TimedOp(NamedTuple):
    """A compute op of a step: its kind, and when it ran, in ns."""

    kind: str
    start: int
    end: int


def slowed(alone: Sequence[TimedOp], beside: Sequence[TimedOp], span: Span) -> dict[str, float]:
    """How much longer each kind of op took beside all-reduces, which ran from ``span``'s begin to
    its end; the same ops in the same order, and only those that ran wholly within count."""
    return _factors((*both, span) for both in zip(alone, beside, strict=True))


def _factors(ops: Iterable[tuple[TimedOp, TimedOp, Span]]) -> dict[str, float]:
    """By kind, the time of ops (alone, beside, when all-reduces ran) that lie within that span,
    over what the same ops took alone."""
    slow: dict[str, int] = defaultdict(int)
    calm: dict[str, int] = defaultdict(int)
    for before, op, (first, last) in ops:
        if first <= op.start and op.end <= last:
            slow[op.kind] += op.end - op.start
            calm[op.kind] += before.end - before.start
    return {kind: slow[kind] / calm[kind] for kind in slow}


class HostContentionProbe(_Probe):
    """On CPU: moments of compute and of all-reduces are on one clock, the host's."""

    def __init__(self, session: Session, plan: SlicePlan, size_bytes: int, ctas: int) -> None:
        super().__init__(session, plan, size_bytes, ctas)
        self.executor = silent_executor(session, plan, HostClock())

    def warm_up(self) -> None:
        """Once through, unmeasured."""
        self._play()

    def measure(self) -> None:
        """One pair of steps."""
        context = self.session.context
        alone, alone_ns = self._play()
        calm_ns = self._calm_ns()
        wanted = max(1, math.ceil(BESIDE * (alone_ns[1] - alone_ns[0]) / calm_ns))
        traffic = Traffic(self.lane, self.size_bytes, context.device, self.dtype)
        traffic.issue(context.all_gather_objects(wanted)[0])
        time.sleep(BEGIN_S)
        beside, beside_ns = self._play(in_step=False)
        traffic.drain()
        spans = _host_spans(traffic)
        busy = [end - start for start, end in spans if start > beside_ns[0] and end < beside_ns[1]]
        self._keep(
            slowed(alone, beside, (spans[0][0], spans[-1][1])),
            statistics.fmean(busy) / calm_ns if busy else None,
        )

    def _calm_ns(self) -> float:
        """One all-reduce, of several back to back beside nothing."""
        self.session.context.barrier()
        device = self.session.context.device
        traffic = Traffic(self.lane, self.size_bytes, device, self.dtype)
        traffic.issue(1 + BURST)
        traffic.drain()
        return statistics.fmean([end - start for start, end in _host_spans(traffic)][1:])

    def _play(self, *, in_step: bool = True) -> tuple[list[TimedOp], Span]:
        """The step's ops, and when it began and ended, on the host's clock."""
        if in_step:
            self.session.context.barrier()
        began = time.perf_counter_ns()
        timeline = self.executor.run_step(*self.session.batch).timeline
        ops = [
            TimedOp(op.signature.kind, began + start, began + end)
            for op, start, end in timeline.lane(COMPUTE)
        ]
        return ops, (began, time.perf_counter_ns())


def _host_spans(traffic: Traffic) -> list[Span]:
    """(start, end) of each on the host's clock."""
    return [(start, end) for start, end in traffic.spans() if isinstance(start, int)]  # type: ignore[misc]


Bursts = list[list[Span]]
"""All-reduces of each chunk of a step, on the same clock as its ops."""
Played = tuple[list[TimedOp], Bursts]


class RivalStart(HeadStart):
    """A head start behind which ``count`` all-reduces begin when the chunk's ops do."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic
        self.count = 0
        self.bursts: list[list[Handle]] = []

    def give(self) -> None:
        """Let the device spin, and all-reduces wait behind the spin as the next ops do."""
        super().give()
        first = len(self.traffic.handles)
        self.traffic.issue(self.count)
        self.bursts.append(self.traffic.handles[first:])

    def forget(self) -> None:
        """A new step: none has been issued."""
        self.traffic.handles.clear()
        self.bursts.clear()


class StreamContentionProbe(_Probe):
    """On CUDA: moments are events, which streams of one device share."""

    def __init__(self, session: Session, plan: SlicePlan, size_bytes: int, ctas: int) -> None:
        super().__init__(session, plan, size_bytes, ctas)
        self.start = RivalStart(Traffic(self.lane, size_bytes, session.context.device, self.dtype))
        self.clock = DeviceClock(self.start)
        self.executor = silent_executor(session, plan, self.clock)
        self.empty_ns = empty_ns(session.context.device)

    def warm_up(self) -> None:
        """Kernels and the lane's communicator are loaded when they are first used."""
        self._calm()
        self._step(1)

    def measure(self) -> None:
        """One pair of steps; nothing where the host of some rank falls behind again and again."""
        calm, alone = self._tried(self._calm), self._tried(lambda: self._step(0))
        if calm is None or alone is None:
            return
        calm_ns = max(1.0, statistics.fmean(_length(span) for span in calm[1][0][1:]))
        wanted = math.ceil(BESIDE * longest_chunk_ns(alone[0]) / calm_ns)
        count = min(MOST_BESIDE, max(1 + BURST, wanted))
        count = self.session.context.all_gather_objects(count)[0]
        beside = self._tried(lambda: self._step(count))
        if beside is not None:
            self._keep(*stretches(alone[0], *beside, calm_ns))

    def _tried(self, play: Callable[[], Played]) -> Played | None:
        """What ``play`` gives once no rank is late; ranks agree on the length of head starts, so
        that all chunks begin together. None after TRIES."""
        context = self.session.context
        for _ in range(TRIES):
            context.barrier()
            found = play()
            ranks = context.all_gather_objects((self.clock.was_late, self.start.spin_ns))
            self.start.spin_ns = max(spin_ns for _, spin_ns in ranks)
            if not any(late for late, _ in ranks):
                return found
        return None

    def _calm(self) -> Played:
        """All-reduces back to back beside nothing."""
        self.start.forget()
        self.start.count = 1 + BURST
        self.clock.start()
        self.clock.stop()
        return [], self._bursts()

    def _step(self, count: int) -> Played:
        """A step with ``count`` all-reduces beside each chunk."""
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
    """The ops that each head start was for."""
    return [ops[first : first + CHUNK_OPS] for first in range(0, len(ops), CHUNK_OPS)]


def longest_chunk_ns(ops: Sequence[TimedOp]) -> int:
    """From the first op of a chunk to its last one's end, at most."""
    return max(chunk[-1].end - chunk[0].start for chunk in chunks_of(ops))


def stretches(
    alone: Sequence[TimedOp], beside: Sequence[TimedOp], bursts: Bursts, calm_ns: float
) -> tuple[dict[str, float], float | None]:
    """How much longer each kind of op took beside all-reduces than alone, and an all-reduce beside
    ops than ``calm_ns``; only what ran wholly beside the other counts, None where none did.

    ``alone`` and ``beside`` are the same ops in the same order. The first all-reduce of a burst,
    which may wait for other ranks to come to it, is left out.
    """
    chunks = list(zip(chunks_of(alone), chunks_of(beside), bursts, strict=True))
    factors = _factors(
        (before, op, (burst[0][0], burst[-1][1]))
        for calm_chunk, chunk, burst in chunks
        for before, op in zip(calm_chunk, chunk, strict=True)
    )
    busy = [
        _length(span)
        for _, chunk, burst in chunks
        for span in burst[1:]
        if chunk[0].start <= span[0] and span[1] <= chunk[-1].end
    ]
    return factors, statistics.fmean(busy) / calm_ns if busy else None


def _length(span: Span) -> int:
    return span[1] - span[0]
