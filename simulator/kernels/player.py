"""The player: it plays a program over arrays, with the semantics of ``simulator.engine``.

Semantics. Every lane is FIFO. A collective is issued when all compute ops before it are done, and
starts when its lane is free. A compute op waits, where it is, for the collectives it reads;
everything after it waits too. The host issues ops one by one in the total order; none starts
before it was issued.

Admission. A collective that finds compute in flight starts if it ``needs`` no more SMs than the
step leaves ``room``; else it waits for the end of the step. A GEMM's full waves leave none, and its
last wave, a step of its own that follows at once, the SMs that have no tile. Where a collective
without room is ready at the instant at which an op starts, the program's launch order says who is
first. ``comm_first``: the collective. ``free``: the op, unless the collective was ready before that
instant. ``ordered``: the op starts when all collectives issued before it have started.

Idle lanes. A collective takes longer by what it does not save and by what it pays for waking, as
its lane idled (``simulator.cpu_hosts``). While it waits for later ranks its link is idle.

Resuming. An op that starts after a wait pays what the wait costs (``simulator.cpu_hosts``): its
work is more by that.

Contention. Between two instants at which any step starts or ends, rates are constant. At each such
instant the work done is subtracted from every op in flight, rounded down to 1/1024 ns; the end of
a step is rounded up to whole ns. Both engines use this rule, so they agree to the nanosecond.

Host. h(i) = max(h(i - 1), end of compute op number c - depth) + cost(i), for compute op number c.
``depth`` is the length of CUDA's launch queue, one per stream. Comm streams hold fewer ops than the
compute stream, so their queues never fill. After an op that ``stops`` it, the host issues nothing
until that is done.

Everything about a moment is in ``s``. Loops, and what need not be played of them, are in
``kernels.periodic``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from simulator.kernels import kernel

Array = Any
LANES: Final = 5

# Columns of a program's arrays.
LANE, NUMBER, LAUNCH, ROOM, NEEDS, PART, WAITS, WAITS_END, SAVED, WAKE, STOPS = range(11)
STEP_COLUMNS: Final = 11
WHOLE, FIRST, REST, FAMILY = range(4)
NUMBER_COLUMNS: Final = 4
LEAF, LEAF_END, COUNT = range(3)

# Entries of ``c``, what holds for the whole program.
C_LANES, C_DEPTH, C_ORDERED, C_FREE, C_SHORTCUT, C_LED, C_MOST_IDLE, C_RECOVERY, C_ROWS = range(9)
C_SPANS: Final = C_ROWS + LANES
C_SIZE: Final = C_SPANS + LANES

# Entries of ``s``.
COMPUTE_NS, COMM_NS, EXPOSED_NS = range(3)
LANE_NS: Final = 3
ISSUED: Final = LANE_NS + LANES
DONE: Final = ISSUED + LANES
SUMS: Final = DONE + LANES
NOW: Final = SUMS
HOST: Final = NOW + 1
BINDINGS: Final = NOW + 2
RING: Final = NOW + 3
RING_END: Final = NOW + 4
PENDING: Final = NOW + 5
HEAP: Final = NOW + 6
OWED: Final = NOW + 7
BUSY_UNTIL: Final = NOW + 8
COMPUTED: Final = NOW + 9
WORK: Final = NOW + 10
RUNS: Final = WORK + LANES
HEAD: Final = RUNS + LANES
TAIL: Final = HEAD + LANES
MOVED_UNTIL: Final = TAIL + LANES
BEGAN: Final = MOVED_UNTIL + LANES
S_SIZE: Final = BEGAN + LANES

# Entries of a queued collective.
Q_WORK, Q_FAMILY, Q_ISSUED, Q_READY, Q_NEEDS, Q_SAVED, Q_WAKE = range(7)
QUEUE_COLUMNS: Final = 7

NEVER: Final = 1 << 62
LONG_AGO: Final = -(1 << 61)
"""When a lane was busy that was not yet used."""
PLAYED, NO_ROOM, STUCK, TOO_LONG = range(4)
MOST_NS: Final = float(1 << 61)
"""Times of programs are below this, so that no sum leaves 64 bits: 73 years."""
_BITS: Final = 20
_MASK: Final = (1 << _BITS) - 1
_SAFE: Final = 1 << 43


@kernel("i i")
def time_of(work: int, rate: int) -> int:
    """Return the ns that ``work`` takes at a slowdown, rounded up, without a product beyond 64
    bits."""
    return (work >> _BITS) * rate + (((work & _MASK) * rate + _MASK) >> _BITS)


@kernel("i i")
def work_in(elapsed: int, rate: int) -> int:
    """Return the work that is done in ``elapsed`` ns at a slowdown, rounded down."""
    if elapsed < _SAFE:
        return (elapsed << _BITS) // rate
    return ((elapsed // rate) << _BITS) + ((elapsed % rate) << _BITS) // rate


@kernel("i1 i1 i")
def row_of(c: Array, s: Array, family: int) -> int:
    """Return the index of the slowdowns of the ops in flight; ``family``: compute's, 0 if idle."""
    row = family
    for lane in range(1, c[C_LANES]):
        row = row * c[C_ROWS + lane] + s[RUNS + lane]
    return int(row * LANES)


@kernel("i1 i1 i3 i i")
def start(c: Array, s: Array, queue: Array, before: int, room: int) -> int:
    """Start the collectives that were ready before ``before`` or that fit into ``room``; return
    whether a lane is in flight. PENDING is when the host issues the next, 0 if it issued all."""
    active = 0
    s[PENDING] = 0
    for lane in range(1, c[C_LANES]):
        if s[WORK + lane] == 0 and s[HEAD + lane] < s[TAIL + lane]:
            at = s[HEAD + lane] & (queue.shape[1] - 1)
            issued = queue[lane, at, Q_ISSUED]
            if issued > s[NOW]:
                s[BINDINGS] += 1
                if s[PENDING] == 0 or issued < s[PENDING]:
                    s[PENDING] = issued
            elif queue[lane, at, Q_NEEDS] <= room or queue[lane, at, Q_READY] < before:
                s[WORK + lane] = queue[lane, at, Q_WORK]
                s[RUNS + lane] = queue[lane, at, Q_FAMILY]
                s[BEGAN + lane] = s[NOW]
                if queue[lane, at, Q_SAVED] != 0 or queue[lane, at, Q_WAKE] != 0:
                    idled = s[NOW] - s[MOVED_UNTIL + lane]
                    more = max(0, queue[lane, at, Q_SAVED] - idled)
                    s[WORK + lane] += (more + min(queue[lane, at, Q_WAKE], idled)) << 10
                s[HEAD + lane] += 1
        if s[WORK + lane] != 0:
            active = 1
    return active


@kernel("i1 i1 i1 i i")
def next_end(c: Array, s: Array, rates: Array, row: int, elapsed: int) -> int:
    """Return the time until the next collective ends, at most ``elapsed``."""
    for lane in range(1, c[C_LANES]):
        if s[WORK + lane] != 0:
            left = time_of(s[WORK + lane], rates[row + lane])
            if left < elapsed:
                elapsed = left
    return int(elapsed)


@kernel("i1 i1 i1 i2 i i")
def advance(c: Array, s: Array, rates: Array, spans: Array, row: int, elapsed: int) -> int:
    """Let ``elapsed`` ns go by on the comm lanes."""
    busy = 0
    for lane in range(1, c[C_LANES]):
        if s[WORK + lane] != 0:
            busy = 1
            s[LANE_NS + lane] += elapsed
            left = s[WORK + lane] - work_in(elapsed, rates[row + lane])
            if left <= 0:
                if spans.shape[0] != 0:
                    place = c[C_SPANS + lane] + s[DONE + lane]
                    spans[place, 0] = s[BEGAN + lane]
                    spans[place, 1] = s[NOW] + elapsed
                if s[RUNS + lane] != 0:  # else it waited, and the link was idle
                    s[MOVED_UNTIL + lane] = s[NOW] + elapsed
                s[WORK + lane] = 0
                s[RUNS + lane] = 0
                s[DONE + lane] += 1
            else:
                s[WORK + lane] = left
    if busy:
        s[COMM_NS] += elapsed
    s[NOW] += elapsed
    return 0


@kernel("i1 i1 i3 i1 i2 i i i i")
def compute(
    c: Array, s: Array, queue: Array, rates: Array, spans: Array, work: int, family: int,
    room: int, before: int,
) -> int:  # fmt: skip
    """Run a step of compute; collectives start beside it as ``start`` says."""
    while True:
        active = start(c, s, queue, before, room)
        before = -1
        if not active:
            elapsed = (work + 1023) >> 10
            s[NOW] += elapsed
            s[COMPUTE_NS] += elapsed
            return 0
        row = row_of(c, s, family)
        ends = time_of(work, rates[row])
        elapsed = next_end(c, s, rates, row, ends)
        s[COMPUTE_NS] += elapsed
        advance(c, s, rates, spans, row, elapsed)
        if elapsed == ends:
            return 0
        work -= work_in(elapsed, rates[row])


@kernel("f2 f", returns="f")
def between(curve: Array, x: float) -> float:
    """Return y of a curve at ``x`` (``simulator.cpu_hosts``)."""
    low_x, low_y = 0.0, 0.0
    for row in range(curve.shape[0]):
        if curve[row, 0] >= x:
            share = (x - low_x) / (curve[row, 0] - low_x)
            return float(low_y + share * (curve[row, 1] - low_y))
        low_x, low_y = curve[row, 0], curve[row, 1]
    return low_y


@kernel("i1 i1 i3 i1 i2 f2 i i i i")
def run(
    c: Array, s: Array, queue: Array, rates: Array, spans: Array, curve: Array, work: int,
    family: int, room: int, before: int,
) -> int:  # fmt: skip
    """Run a step of compute with what it pays for the last wait."""
    begins = s[NOW]
    if curve.shape[0] != 0:
        if s[NOW] > s[BUSY_UNTIL]:
            idle_us = (s[NOW] - s[BUSY_UNTIL]) / 1000
            s[OWED] = max(s[OWED], int(np.rint(between(curve, idle_us) * 1000)))
        if s[OWED] != 0:
            duration = work >> 10
            paid = s[OWED] * duration // (duration + c[C_RECOVERY])
            s[OWED] -= paid
            work += paid << 10
    compute(c, s, queue, rates, spans, work, family, room, before)
    s[BUSY_UNTIL] = s[NOW]
    if spans.shape[0] != 0:
        spans[c[C_SPANS] + s[COMPUTED], 0] = begins
        spans[c[C_SPANS] + s[COMPUTED], 1] = s[NOW]
        s[COMPUTED] += 1
    return 0


@kernel("i1 i1 i3 i1 i2 i")
def idle(c: Array, s: Array, queue: Array, rates: Array, spans: Array, until: int) -> int:
    """Let comm lanes run to their next event, or to ``until`` if that is not 0."""
    active = start(c, s, queue, NEVER, 0)
    limit = NEVER
    if s[PENDING] != 0:
        limit = s[PENDING] - s[NOW]
    if until != 0 and until - s[NOW] < limit:
        limit = until - s[NOW]
    row = row_of(c, s, 0)
    elapsed = next_end(c, s, rates, row, limit)
    if elapsed == NEVER:
        return STUCK
    if active:
        s[EXPOSED_NS] += elapsed
    advance(c, s, rates, spans, row, elapsed)
    return PLAYED


@kernel("i1 i1 i3")
def is_awaited(c: Array, s: Array, queue: Array) -> int:
    """Return whether a collective that was issued and needs SMs has not started."""
    for lane in range(1, c[C_LANES]):
        for index in range(s[HEAD + lane], s[TAIL + lane]):
            if queue[lane, index & (queue.shape[1] - 1), Q_NEEDS] != 0:
                return 1
    return 0


@kernel("i1 i1 i1 i i")
def issue(c: Array, s: Array, ends: Array, lane: int, launch: int) -> int:
    """Issue an op; return when its host has."""
    if c[C_DEPTH] == 0:
        return 0
    if lane == 0 and s[RING_END] - s[RING] == c[C_DEPTH]:
        oldest = ends[s[RING] & (ends.shape[0] - 1)]
        if oldest > s[HOST]:
            s[HOST] = oldest
    s[HOST] += launch
    return int(s[HOST])


@kernel("i1 i1 i1 i")
def ended(c: Array, s: Array, ends: Array, at: int) -> int:
    """Record the end of the compute op issued last."""
    if c[C_DEPTH] != 0:
        if s[RING_END] - s[RING] == c[C_DEPTH]:
            s[RING] += 1
        ends[s[RING_END] & (ends.shape[0] - 1)] = at
        s[RING_END] += 1
    return 0


@kernel("i1 i")
def stop(s: Array, stops: int) -> int:
    """Let the host wait for the compute op that has ended, if that ``stops`` it."""
    if stops and s[HOST] < s[NOW]:
        s[HOST] = s[NOW]
    return 0


@kernel("i1 i2 i2 i2 i1 f2 i1 i3 i1 i2 i i")
def play_leaf(
    c: Array, steps: Array, waits: Array, numbers: Array, rates: Array, curve: Array,
    s: Array, queue: Array, ends: Array, spans: Array, first: int, last: int,
) -> int:  # fmt: skip
    """Play the steps of one repetition."""
    for index in range(first, last):
        lane, number, part = steps[index, LANE], steps[index, NUMBER], steps[index, PART]
        work, family = numbers[number, part], numbers[number, FAMILY]
        if part == REST:
            run(c, s, queue, rates, spans, curve, work, family, steps[index, ROOM], -1)
            ended(c, s, ends, s[NOW])
            stop(s, steps[index, STOPS])
            continue
        issued = issue(c, s, ends, lane, steps[index, LAUNCH])
        if lane != 0:
            if s[TAIL + lane] - s[HEAD + lane] == queue.shape[1]:
                return NO_ROOM
            at = s[TAIL + lane] & (queue.shape[1] - 1)
            queue[lane, at, Q_WORK] = work
            queue[lane, at, Q_FAMILY] = family
            queue[lane, at, Q_ISSUED] = issued
            queue[lane, at, Q_READY] = s[NOW]
            queue[lane, at, Q_NEEDS] = steps[index, NEEDS]
            queue[lane, at, Q_SAVED] = steps[index, SAVED]
            queue[lane, at, Q_WAKE] = steps[index, WAKE]
            s[TAIL + lane] += 1
            s[ISSUED + lane] += 1
            continue
        for wait in range(steps[index, WAITS], steps[index, WAITS_END]):
            waited = waits[wait, 0]
            needed = s[ISSUED + waited] - waits[wait, 1]
            while s[DONE + waited] < needed:
                if idle(c, s, queue, rates, spans, 0) != PLAYED:
                    return STUCK
        if issued > s[NOW]:
            s[BINDINGS] += 1
            while s[NOW] < issued:
                idle(c, s, queue, rates, spans, issued)
        if c[C_ORDERED]:
            start(c, s, queue, NEVER, 0)
            while is_awaited(c, s, queue):
                if idle(c, s, queue, rates, spans, 0) != PLAYED:
                    return STUCK
                start(c, s, queue, NEVER, 0)
        before = s[NOW] if c[C_FREE] else NEVER
        run(c, s, queue, rates, spans, curve, work, family, steps[index, ROOM], before)
        if part != FIRST:
            ended(c, s, ends, s[NOW])
            stop(s, steps[index, STOPS])
    return PLAYED
