"""Programs: loops of the player, and what need not be played of them.

At the end of each repetition of a loop the whole state is taken relative to now. If it occurred
before, whole periods are added up instead of played. The devices' state then repeats after a period
of T ns and P compute ops, in which the host spends H ns. (a) If no op waited for the host in the
period, H <= T and depth >= 2P, no op ever will: the host's lead grows by T - H in each period, and
the queue frees places a whole period before they are needed. (b) If ops did wait for the host or
one stopped it, its lead over the device is the same as a period before, and depth >= P, everything
repeats. (c) Everything also repeats if the lead and all ends in the queue are the same. This is
checked for micro-batches, which are longer than the queue. In all other cases nothing is skipped.
The result is the same to the nanosecond.

The first entries of ``s`` are sums that a skipped period adds to. A mark is a copy of it in
``heap``, followed by what must repeat.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.kernels import kernel
from simulator.kernels.player import (
    BINDINGS,
    BUSY_UNTIL,
    C_DEPTH,
    C_LANES,
    C_LED,
    C_MOST_IDLE,
    C_SHORTCUT,
    COUNT,
    DONE,
    HEAD,
    HEAP,
    HOST,
    ISSUED,
    LANE,
    LANES,
    LAUNCH,
    LEAF,
    LEAF_END,
    LONG_AGO,
    MOST_NS,
    MOVED_UNTIL,
    NOW,
    NUMBER,
    OWED,
    PART,
    PLAYED,
    Q_FAMILY,
    Q_ISSUED,
    Q_NEEDS,
    Q_READY,
    Q_SAVED,
    Q_WAKE,
    Q_WORK,
    QUEUE_COLUMNS,
    REST,
    RING,
    RING_END,
    RUNS,
    STOPS,
    STUCK,
    SUMS,
    TAIL,
    TOO_LONG,
    WORK,
    ended,
    idle,
    issue,
    play_leaf,
)

Array = Any

# Entries of a mark.
M_BEFORE, M_REPETITION, M_HOST, M_BINDINGS, M_NOW = range(5)
M_SUMS: Final = 5
M_ENDS: Final = M_SUMS + SUMS


@kernel("i1 i1 i3 i1 i1 i i i")
def mark(
    c: Array, s: Array, queue: Array, ends: Array, heap: Array, last: int, repetition: int,
    whole_micro: int,
) -> int:  # fmt: skip
    """Write a mark after the others; return where it begins, or -1 without room: then nothing is
    skipped to here. ``last``: the mark before it, -1 if it is the first."""
    at, lead = s[HEAP], s[RING_END] - s[RING] if whole_micro else 0
    queued = 0
    for lane in range(1, c[C_LANES]):
        queued += s[TAIL + lane] - s[HEAD + lane]
    size = M_ENDS + 1 + lead + 2 + 5 * LANES + QUEUE_COLUMNS * queued
    if at + size > heap.shape[0]:
        return -1
    heap[at + M_BEFORE] = last
    heap[at + M_REPETITION] = repetition
    heap[at + M_HOST] = s[HOST]
    heap[at + M_BINDINGS] = s[BINDINGS]
    heap[at + M_NOW] = s[NOW]
    for index in range(SUMS):
        heap[at + M_SUMS + index] = s[index]
    heap[at + M_ENDS] = lead
    to = at + M_ENDS + 1
    for index in range(lead):
        heap[to] = s[NOW] - ends[(s[RING] + index) & (ends.shape[0] - 1)]
        to += 1
    begins = to
    heap[to + 1] = s[OWED]
    to += 2
    for lane in range(1, c[C_LANES]):
        heap[to] = s[WORK + lane]
        heap[to + 1] = s[RUNS + lane]
        heap[to + 2] = s[ISSUED + lane] - s[DONE + lane]
        heap[to + 3] = s[TAIL + lane] - s[HEAD + lane]
        moves = s[WORK + lane] != 0 and s[RUNS + lane] != 0
        heap[to + 4] = 0 if moves else min(c[C_MOST_IDLE], s[NOW] - s[MOVED_UNTIL + lane])
        to += 5
        for index in range(s[HEAD + lane], s[TAIL + lane]):
            place = index & (queue.shape[1] - 1)
            heap[to] = queue[lane, place, Q_WORK]
            heap[to + 1] = queue[lane, place, Q_FAMILY]
            heap[to + 2] = max(0, queue[lane, place, Q_ISSUED] - s[NOW])
            heap[to + 3] = 1 if queue[lane, place, Q_READY] < s[NOW] else 0
            heap[to + 4] = queue[lane, place, Q_NEEDS]
            heap[to + 5] = queue[lane, place, Q_SAVED]
            heap[to + 6] = queue[lane, place, Q_WAKE]
            to += QUEUE_COLUMNS
    heap[begins] = to - begins
    s[HEAP] = to
    return int(at)


@kernel("i1 i i")
def same_state(heap: Array, one: int, other: int) -> int:
    """Return whether the states of two marks are the same."""
    a = one + M_ENDS + 1 + heap[one + M_ENDS]
    b = other + M_ENDS + 1 + heap[other + M_ENDS]
    for index in range(heap[a]):
        if heap[a + index] != heap[b + index]:
            return 0
    return 1


@kernel("i1 i i")
def latest_like(heap: Array, at: int, before: int) -> int:
    """Return the latest mark with the state of mark ``at``, from ``before`` back; -1 if none is."""
    while at >= 0 and before >= 0 and not same_state(heap, at, before):
        before = heap[before + M_BEFORE]
    return before if at >= 0 else -1


@kernel("i1 i1 i1 i1 i")
def same_host(c: Array, s: Array, ends: Array, heap: Array, at: int) -> int:
    """Return whether the host's lead and its queue are the same as at a mark."""
    lead = heap[at + M_ENDS]
    if s[HOST] - heap[at + M_HOST] != s[NOW] - heap[at + M_NOW]:
        return 0
    if lead == 0 or lead != s[RING_END] - s[RING]:
        return 0
    for index in range(lead):
        back = s[NOW] - ends[(s[RING] + index) & (ends.shape[0] - 1)]
        if back != heap[at + M_ENDS + 1 + index]:
            return 0
    return 1


@kernel("i2 i2 i i i i1")
def launches(steps: Array, leaves: Array, leaf: int, leaf_end: int, one: int, found: Array) -> int:
    """Put into ``found`` the compute ops and the launch costs of the leaves; ``one`` counts each
    leaf once. Return whether one of them stops the host."""
    found[0] = found[1] = stops = 0
    for number in range(leaf, leaf_end):
        computes = cost = 0
        for index in range(leaves[number, LEAF], leaves[number, LEAF_END]):
            if steps[index, PART] != REST:
                cost += steps[index, LAUNCH]
                computes += steps[index, LANE] == 0
            stops |= steps[index, STOPS]
        times = 1 if one else leaves[number, COUNT]
        found[0] += times * computes
        found[1] += times * cost
    return int(stops)


@kernel("i1 i2 i2 i1 i1 i1 i i i i i i i i")
def skip_host(
    c: Array, steps: Array, leaves: Array, s: Array, ends: Array, scratch: Array,
    leaf: int, leaf_end: int, one: int, period: int, count: int, times: int, elapsed: int,
    stops: int,
) -> int:  # fmt: skip
    """Advance the host by ``times`` more periods of ``period`` repetitions, of ``count`` compute
    ops that end ``elapsed`` later each.

    Ops are issued one by one until the queue holds ends of such periods alone. From then on the
    host is free, or a place that the last period freed blocks it: those of earlier periods are
    freed ``elapsed`` earlier each, and have at most ``elapsed`` more of launches after them.
    """
    depth, cost = c[C_DEPTH], 0
    for index in range(count):
        scratch[index] = ends[(s[RING_END] - count + index) & (ends.shape[0] - 1)]
    played = min(times, -(-depth // count) + 2)
    for number in range(1, played + 1):
        position = cost = 0
        for _ in range(period):
            for which in range(leaf, leaf_end):
                for _ in range(1 if one else leaves[which, COUNT]):
                    for index in range(leaves[which, LEAF], leaves[which, LEAF_END]):
                        if steps[index, PART] != REST:
                            issue(c, s, ends, steps[index, LANE], steps[index, LAUNCH])
                            cost += steps[index, LAUNCH]
                            if steps[index, LANE] == 0:
                                ended(c, s, ends, scratch[position] + number * elapsed)
                                position += 1
                        if steps[index, STOPS]:
                            s[HOST] = max(s[HOST], scratch[position - 1] + number * elapsed)
    rest = times - played
    if rest == 0:
        return 0
    if stops:
        s[HOST] += rest * elapsed
        for index in range(s[RING], s[RING_END]):
            ends[index & (ends.shape[0] - 1)] += rest * elapsed
        return 0
    whole, part = depth // count, depth % count
    latest, left, position = s[HOST] + rest * cost, cost, 0
    for _ in range(period):
        for which in range(leaf, leaf_end):
            for _ in range(1 if one else leaves[which, COUNT]):
                for index in range(leaves[which, LEAF], leaves[which, LEAF_END]):
                    if steps[index, PART] == REST:
                        continue
                    if steps[index, LANE] == 0:
                        back = whole + (1 if position < part else 0)
                        at = (position - part + count) % count
                        latest = max(latest, scratch[at] + (times - back) * elapsed + left)
                        position += 1
                    left -= steps[index, LAUNCH]
    s[HOST] = latest
    for index in range(s[RING], s[RING_END]):
        ends[index & (ends.shape[0] - 1)] += rest * elapsed
    return 0


@kernel("i1 i2 i2 i1 i3 i1 i1 i1 i i i i i i")
def skip(
    c: Array, steps: Array, leaves: Array, s: Array, queue: Array, ends: Array, heap: Array,
    scratch: Array, at: int, leaf: int, leaf_end: int, one: int, repetition: int, left: int,
) -> int:  # fmt: skip
    """Add up whole periods like the one since the mark ``at``; return the repetitions skipped."""
    period = repetition - heap[at + M_REPETITION]
    times = left // period
    if times == 0:
        return 0
    elapsed = s[NOW] - heap[at + M_NOW]
    computes = same = stops = 0
    if c[C_DEPTH] != 0:
        stops = launches(steps, leaves, leaf, leaf_end, one, scratch)
        computes, cost = period * scratch[0], period * scratch[1]
        same = same_host(c, s, ends, heap, at)
        if not same:
            lead = s[HOST] - heap[at + M_HOST]
            if computes == 0:
                return 0
            if s[BINDINGS] == heap[at + M_BINDINGS] and not stops:
                if cost > elapsed or c[C_DEPTH] < 2 * computes:
                    return 0
            elif lead != elapsed or c[C_DEPTH] < computes:
                return 0
        s[BINDINGS] += (s[BINDINGS] - heap[at + M_BINDINGS]) * times
    for index in range(SUMS):
        s[index] += (s[index] - heap[at + M_SUMS + index]) * times
    later = times * elapsed
    for lane in range(1, c[C_LANES]):
        for index in range(s[HEAD + lane], s[TAIL + lane]):
            queue[lane, index & (queue.shape[1] - 1), Q_ISSUED] += later
            queue[lane, index & (queue.shape[1] - 1), Q_READY] += later
        s[MOVED_UNTIL + lane] += later
    if same:
        s[HOST] += later
        for index in range(s[RING], s[RING_END]):
            ends[index & (ends.shape[0] - 1)] += later
    elif c[C_DEPTH] != 0:
        skip_host(
            c, steps, leaves, s, ends, scratch, leaf, leaf_end, one, period, computes, times,
            elapsed, stops,
        )  # fmt: skip
    s[NOW] += later
    s[BUSY_UNTIL] = s[NOW]
    return int(times * period)


@kernel("i1 i2 i2 i2 i2 i1 f2 i1 i3 i1 i1 i1 i2 i")
def run_leaf(
    c: Array, steps: Array, waits: Array, leaves: Array, numbers: Array, rates: Array,
    curve: Array, s: Array, queue: Array, ends: Array, heap: Array, scratch: Array, spans: Array,
    leaf: int,
) -> int:  # fmt: skip
    """Play all repetitions of a leaf; skip periods if the state repeats."""
    first, last, count = leaves[leaf, LEAF], leaves[leaf, LEAF_END], leaves[leaf, COUNT]
    base, before, repetition = s[HEAP], -1, 0
    while repetition < count:
        status = play_leaf(
            c, steps, waits, numbers, rates, curve, s, queue, ends, spans, first, last
        )
        if status != PLAYED:
            return status
        repetition += 1
        if c[C_SHORTCUT] and repetition < count:
            at = mark(c, s, queue, ends, heap, before, repetition, 0)
            other = latest_like(heap, at, before)
            before = max(before, at)
            if other >= 0:
                repetition += skip(
                    c, steps, leaves, s, queue, ends, heap, scratch, other, leaf, leaf + 1, 1,
                    repetition, count - repetition,
                )  # fmt: skip
    s[HEAP] = base
    return PLAYED


@kernel("i1 i2 i2 i2 i2 i1 i1")
def measure(
    c: Array, steps: Array, leaves: Array, parts: Array, numbers: Array, rates: Array, s: Array
) -> int:
    """Put the host behind its launches where it has issued all before; return PLAYED, or TOO_LONG
    if times could leave 64 bits."""
    works, launched, slowest = 0.0, 0, 0
    for part in range(parts.shape[0]):
        for leaf in range(parts[part, LEAF], parts[part, LEAF_END]):
            times = parts[part, COUNT] * leaves[leaf, COUNT]
            for step in range(leaves[leaf, LEAF], leaves[leaf, LEAF_END]):
                works += float(times) * numbers[steps[step, NUMBER], steps[step, PART]]
                launched += times * steps[step, LAUNCH]
    for place in range(rates.shape[0]):
        slowest = max(slowest, rates[place])
    if c[C_LED]:
        s[HOST] = -launched
    return TOO_LONG if works / 1024 * slowest / 1024 + launched >= MOST_NS else PLAYED


@kernel("i1 i2 i2 i2 i2 i2 i1 f2 i1 i3 i1 i1 i1 i2", entry=True)
def play_program(
    c: Array, steps: Array, waits: Array, leaves: Array, parts: Array, numbers: Array,
    rates: Array, curve: Array, s: Array, queue: Array, ends: Array, heap: Array,
    scratch: Array, spans: Array,
) -> int:  # fmt: skip
    """Play a program from the start, with ``s`` all zero; return PLAYED, NO_ROOM if the queues are
    too short, STUCK if compute waits for an op that is never issued, or TOO_LONG. ``spans``, if it
    has rows, receives the start and end of each step, lane by lane; then nothing may be skipped."""
    status = measure(c, steps, leaves, parts, numbers, rates, s)
    if status != PLAYED:
        return status
    for lane in range(LANES):
        s[MOVED_UNTIL + lane] = LONG_AGO
    for part in range(parts.shape[0]):
        leaf, leaf_end, count = parts[part, LEAF], parts[part, LEAF_END], parts[part, COUNT]
        base, before, repetition = s[HEAP], -1, 0
        while repetition < count:
            for which in range(leaf, leaf_end):
                status = run_leaf(
                    c, steps, waits, leaves, numbers, rates, curve, s, queue, ends, heap, scratch,
                    spans, which,
                )  # fmt: skip
                if status != PLAYED:
                    return status
            repetition += 1
            if c[C_SHORTCUT] and repetition < count:
                at = mark(c, s, queue, ends, heap, before, repetition, 1)
                other = latest_like(heap, at, before)
                before = max(before, at)
                if other >= 0:
                    repetition += skip(
                        c, steps, leaves, s, queue, ends, heap, scratch, other, leaf, leaf_end, 0,
                        repetition, count - repetition,
                    )  # fmt: skip
        s[HEAP] = base
    while True:
        waiting = 0
        for lane in range(1, c[C_LANES]):
            waiting += s[WORK + lane] != 0 or s[HEAD + lane] < s[TAIL + lane]
        if not waiting:
            return PLAYED
        if idle(c, s, queue, rates, spans, 0) != PLAYED:
            return STUCK
