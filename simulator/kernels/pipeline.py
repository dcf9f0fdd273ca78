"""The fast engine of pipelines: a recurrence over tasks, with the rules of ``pipeline.program``.

Ranks advance as far as known times allow; a message that becomes known lets others continue.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.kernels import kernel

Array = Any
UNKNOWN: Final = -1

# Columns of tasks, of passes, of a task's row on the data-parallel lane, of messages, of the spans
# of gathers and tasks, of a message's known times, and of ranks.
READS, SENDS, PASS, BEHIND, LANE = range(5)
DURATION_NS, LATE_NS, ISSUED_NS, HELD_NS = range(4)
FIRST_GATHER_NS, GATHERS_NS, BUCKETS_AT, BUCKETS = range(4)
MESSAGE_NS, LINK, SENDER, RECEIVER = range(4)
START, END, GATHERED, ALL_GATHERED = range(4)
SENT, AWAITED, STARTED, ARRIVED = range(4)
NEXT, FREE, POSTED, LANE_FREE, QUEUED, HOST, WAITED = range(7)
RANK_COLUMNS: Final = 7
AT_PEAK, AT_PEAK_LOGITS, AT_END, AT_END_LOGITS = range(4)
"""Columns of passes' changes of memory: at their peak, and after them."""


@kernel("i1 i2 i2 i2 i2 i")
def gather_parameters(
    first: Array, tasks: Array, lanes: Array, spans: Array, ranks: Array, rank: int
) -> int:
    """Set a rank to its beginning; gather the parameters of its tasks, one after the other."""
    ranks[rank, NEXT] = first[rank]
    ranks[rank, FREE] = ranks[rank, POSTED] = ranks[rank, HOST] = ranks[rank, WAITED] = 0
    lane_free = 0
    for index in range(first[rank], first[rank + 1]):
        lane = tasks[index, LANE]
        if lane >= 0 and lanes[lane, FIRST_GATHER_NS] >= 0:
            spans[index, GATHERED] = lane_free + lanes[lane, FIRST_GATHER_NS]
            lane_free += lanes[lane, GATHERS_NS]
            spans[index, ALL_GATHERED] = lane_free
    ranks[rank, LANE_FREE] = lane_free
    return 0


@kernel("i1 i2 i2 i2 i i i")
def task_start(
    first: Array, tasks: Array, over: Array, ranks: Array, rank: int, index: int, blocking: int
) -> int:
    """Return when the rank's next task may start, as far as messages say; UNKNOWN until they
    come."""
    start: int = ranks[rank, FREE]
    read = tasks[index, READS]
    if read >= 0:
        if over[read, ARRIVED] == UNKNOWN:
            return UNKNOWN
        start = max(start, over[read, ARRIVED])
    if blocking and index > first[rank]:
        sent = tasks[index - 1, SENDS]
        if sent >= 0:
            if over[sent, ARRIVED] == UNKNOWN:
                return UNKNOWN
            start = max(start, over[sent, ARRIVED])
    return start


@kernel("i2 i2 i i i i")
def pass_ns(passes: Array, ranks: Array, rank: int, played: int, start: int, room_at: int) -> int:
    """Return the time of a pass from ``start`` on, behind its rank's host, which may issue it from
    ``room_at`` on."""
    host = max(ranks[rank, HOST], room_at)
    duration: int = max(passes[played, DURATION_NS], host + passes[played, LATE_NS] - start)
    ranks[rank, WAITED] += duration - passes[played, DURATION_NS]
    ranks[rank, HOST] = max(host + passes[played, ISSUED_NS], start + passes[played, HELD_NS])
    return duration


@kernel("i2 i1 i2 i i i i")
def sum_buckets(
    lanes: Array, buckets: Array, ranks: Array, rank: int, lane: int, start: int, duration: int
) -> int:
    """Put the buckets of a task on the rank's data-parallel lane."""
    count = lanes[lane, BUCKETS]
    for number in range(count):
        ready = start + duration * (number + 1) // count
        free = max(ranks[rank, LANE_FREE], ready)
        ranks[rank, LANE_FREE] = free + buckets[lanes[lane, BUCKETS_AT] + number]
    return 0


@kernel("i2 i2 i1 i2 i1 i i i")
def deliver_message(
    messages: Array, over: Array, link_free: Array, ranks: Array, queue: Array, head: int,
    waiting: int, number: int,
) -> int:  # fmt: skip
    """Send the message if both its ends are known; return how many ranks wait for their turn
    then."""
    if over[number, SENT] == UNKNOWN or over[number, AWAITED] == UNKNOWN:
        return waiting
    link = messages[number, LINK]
    start = max(over[number, SENT], over[number, AWAITED], link_free[link])
    over[number, STARTED] = start
    over[number, ARRIVED] = link_free[link] = start + messages[number, MESSAGE_NS]
    for end in (RECEIVER, SENDER):
        rank = messages[number, end]
        if not ranks[rank, QUEUED]:
            ranks[rank, QUEUED] = 1
            queue[(head + waiting) % ranks.shape[0]] = rank
            waiting += 1
    return waiting


@kernel("i1 i2 i2 i2 i1 i2 i i i2 i2 i2 i1 i1", entry=True)
def play_pipeline(
    first: Array, tasks: Array, passes: Array, lanes: Array, buckets: Array, messages: Array,
    blocking: int, rendezvous: int, spans: Array, over: Array, ranks: Array, link_free: Array,
    queue: Array,
) -> int:  # fmt: skip
    """Return how many tasks were played; put the times of tasks into ``spans``, of messages into
    ``over``, and when each rank is free into ``ranks``. ``queue`` has room for all ranks."""
    count = ranks.shape[0]
    for number in range(messages.shape[0]):
        over[number, SENT] = over[number, ARRIVED] = UNKNOWN
        over[number, STARTED] = 0
        over[number, AWAITED] = UNKNOWN if rendezvous else 0
    for link in range(link_free.shape[0]):
        link_free[link] = 0
    for rank in range(count):
        gather_parameters(first, tasks, lanes, spans, ranks, rank)
        ranks[rank, QUEUED] = 1
        queue[rank] = rank
    head, waiting, played = 0, count, 0
    while waiting:
        rank = queue[head]
        head = (head + 1) % count
        waiting -= 1
        ranks[rank, QUEUED] = 0
        while ranks[rank, NEXT] < first[rank + 1]:
            index = ranks[rank, NEXT]
            if not ranks[rank, POSTED]:
                ranks[rank, POSTED] = 1
                read = tasks[index, READS]
                if read >= 0 and over[read, AWAITED] == UNKNOWN:
                    over[read, AWAITED] = ranks[rank, FREE]
                    waiting = deliver_message(
                        messages, over, link_free, ranks, queue, head, waiting, read
                    )
            start = task_start(first, tasks, over, ranks, rank, index, blocking)
            if start == UNKNOWN:
                break
            lane, behind = tasks[index, LANE], tasks[index, BEHIND]
            gathers = lane >= 0 and lanes[lane, FIRST_GATHER_NS] >= 0
            if gathers:
                start = max(start, spans[index, GATHERED])
            room_at = spans[behind, END] if behind >= 0 else 0
            duration = pass_ns(passes, ranks, rank, tasks[index, PASS], start, room_at)
            end = max(start + duration, spans[index, ALL_GATHERED] if gathers else 0)
            spans[index, START], spans[index, END] = start, end
            if lane >= 0:
                sum_buckets(lanes, buckets, ranks, rank, lane, start, duration)
            ranks[rank, FREE], ranks[rank, POSTED] = end, 0
            ranks[rank, NEXT] = index + 1
            played += 1
            sent = tasks[index, SENDS]
            if sent >= 0:
                over[sent, SENT] = end
                waiting = deliver_message(
                    messages, over, link_free, ranks, queue, head, waiting, sent
                )
    return played


@kernel("i1 i1 i2 i2", entry=True)
def rank_peaks(first: Array, of_task: Array, changes: Array, peaks: Array) -> int:
    """Raise each row of ``peaks`` (whole bytes, logits) to the most that the rank's tasks hold, by
    the changes that each makes; return the number of tasks."""
    for rank in range(peaks.shape[0]):
        whole = logits = 0
        most, most_logits = peaks[rank, 0], peaks[rank, 1]
        for index in range(first[rank], first[rank + 1]):
            change = of_task[index]
            at, at_logits = (
                whole + changes[change, AT_PEAK],
                logits + changes[change, AT_PEAK_LOGITS],
            )
            if at > most or (at == most and at_logits > most_logits):
                most, most_logits = at, at_logits
            whole += changes[change, AT_END]
            logits += changes[change, AT_END_LOGITS]
        peaks[rank, 0], peaks[rank, 1] = most, most_logits
    return int(of_task.shape[0])
