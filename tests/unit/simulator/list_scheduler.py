"""An independent answer: list scheduling of named ops, without contention and without loops.

It knows names and lanes only, and shares no code with the program compiler or the engines. Each op
starts at the latest end of its predecessors:
- the op issued before it on its lane (FIFO);
- a compute op: whatever it reads; a collective: every compute op issued before it;
- the host, which issues the ops one by one, at most ``queue_depth`` compute ops ahead, and none
  before an op that it awaits is done.

A compute op after a wait takes longer, by its part of the wait's cost. A collective ends no sooner
than its duration, plus the saving of an idle link, after the last one of its lane; ``idle`` holds
that saving and the cost of waking the lane, as far as the lane slept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulator.cpu_hosts import ResumeFit
from simulator.schedule import Op

ON_COMPUTE = 0


class Placed(NamedTuple):
    """When one op ran."""

    start_ns: int
    end_ns: int


def predecessors(ops: Sequence[Op]) -> list[set[int]]:
    """Indices of the ops that each op has to wait for."""
    found: list[set[int]] = []
    writer: dict[str, int] = {}
    last_on: dict[int, int] = {}
    computed: list[int] = []
    for index, op in enumerate(ops):
        before = {writer[name] for name in op.reads if name in writer}
        if op.lane in last_on:
            before.add(last_on[op.lane])
        if op.lane != ON_COMPUTE:
            before.update(computed[-9:])  # all before it; FIFO, so the last would do
        else:
            computed.append(index)
        last_on[op.lane] = index
        writer.update((name, index) for name in op.writes)
        found.append(before)
    return found


def list_schedule(
    ops: Sequence[Op],
    durations_ns: Sequence[int],
    launches_ns: Sequence[int] = (),
    queue_depth: int = 0,
    resume: ResumeFit | None = None,
    idle: Sequence[tuple[int, int]] = (),
) -> list[Placed]:
    """Start and end of every op; ``queue_depth`` 0 leaves the host out."""
    owed_ns = 0
    moved_ns: dict[int, int] = {}
    placed: list[Placed] = []
    host_ns = 0
    compute_ends: list[int] = []
    for index, (op, before) in enumerate(zip(ops, predecessors(ops), strict=True)):
        earliest = 0
        if queue_depth:
            if op.lane == ON_COMPUTE and len(compute_ends) >= queue_depth:
                host_ns = max(host_ns, compute_ends[-queue_depth])
            host_ns += launches_ns[index]
            earliest = host_ns
        start = max([earliest, *(placed[other].end_ns for other in before)])
        duration_ns = durations_ns[index]
        if resume and op.lane == ON_COMPUTE:
            idle_ns = start - (compute_ends[-1] if compute_ends else 0)
            owed_ns = resume.owed_ns(idle_ns, owed_ns) if idle_ns else owed_ns
            paid_ns = resume.paid_ns(owed_ns, duration_ns)
            owed_ns, duration_ns = owed_ns - paid_ns, duration_ns + paid_ns
        end_ns = start + duration_ns
        if op.lane != ON_COMPUTE and idle:
            saved_ns, wake_ns = idle[index]
            awake_until = moved_ns.get(op.lane, start - saved_ns - wake_ns)
            end_ns = max(end_ns, awake_until + saved_ns + duration_ns)
            end_ns += min(start - awake_until, wake_ns)
            moved_ns[op.lane] = end_ns
        placed.append(Placed(start, end_ns))
        if op.lane == ON_COMPUTE:
            compute_ends.append(placed[-1].end_ns)
            if getattr(op.signature, "awaited", False):
                host_ns = max(host_ns, placed[-1].end_ns)
    return placed


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Time that at least one of the spans covers."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
