"""How much of a pass's collectives no compute hides, by its order (``simulator.bounds``).

Where compute waits until all collectives before it have started, a collective of a lane is in
flight beside the compute between it and the next one of its lane, and beside no other: compute
before it is done before it starts, and the next one starts when it is done. Compute that reads its
value, and what is issued behind that, waits for it.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.kernels import kernel
from simulator.kernels.lives import (
    G_COUNT,
    G_FIRST,
    G_OPS,
    G_OPS_END,
    G_STRIDE,
    O_LANE,
    O_MARK,
    O_OFFSET,
    O_READS,
    O_READS_END,
    O_WRITES,
    O_WRITES_END,
    R_LAYER,
    R_VALUE,
    SUMS,
)

Array = Any
FAMILIES: Final = 3
"""Families of compute; a law has their slowdowns, then that of a collective, then the families in
rising order of theirs."""
PLACE, STARTS, TIMES = range(3)
COLUMNS: Final = 3


@kernel("f1 f f f f", returns="f")
def most_saved(law: Array, gemm: float, attention: float, pointwise: float, comm: float) -> float:
    """Return the most that compute and a collective of ``comm`` save by running at the same time
    (``simulator.curves.saved_ns``)."""
    saved, room = 0.0, law[FAMILIES] * comm
    for place in range(FAMILIES):
        family = law[FAMILIES + 1 + place]
        alone = gemm if family == 0 else attention if family == 1 else pointwise
        slow = law[int(family)]
        beside = min(room, slow * alone)
        saved += max(0.0, 1 / slow + 1 / law[FAMILIES] - 1) * beside
        room -= beside
    return saved


@kernel("i2 i2 i i i i i")
def reads_of(
    ops: Array, refs: Array, op: int, lap: int, collective: int, since: int, sign: int
) -> int:
    """Return whether an op reads what a collective wrote; ``lap``, ``since``: their layers."""
    for read in range(ops[op, O_READS], ops[op, O_READS_END]):
        for write in range(ops[collective, O_WRITES], ops[collective, O_WRITES_END]):
            later = lap - since + sign * (refs[read, R_LAYER] - refs[write, R_LAYER])
            if later == 0 and refs[read, R_VALUE] == refs[write, R_VALUE]:
                return 1
    return 0


@kernel("i2 i2 i1 i2 i i i2", entry=True)
def find_windows(
    ops: Array, refs: Array, listed: Array, segments: Array, lane: int, sign: int,
    windows: Array,
) -> int:  # fmt: skip
    """List the collectives of ``lane`` in a pass, each followed by the compute that may run beside
    it, as (place in ``listed``, whether a collective, times); return how many rows. Of a segment
    the first, the second and the last repetition are listed, the second one for all between.
    ``sign``: as in ``kernels.planner``. Collectives behind the loss's sums are left out: it is
    backward that reads them."""
    found = collective = since = 0
    waits, sums = 1, 0
    for segment in range(segments.shape[0]):
        count, stride = segments[segment, G_COUNT], segments[segment, G_STRIDE]
        for turn in range(min(3, count)):
            times, repetition = count - 2 if turn == 1 and count > 2 else 1, turn
            if turn == 2:
                repetition = count - 1
                since += (count - 3) * stride
            first = segments[segment, G_FIRST] + repetition * stride
            for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
                op = listed[at]
                lap = first + ops[op, O_OFFSET]
                sums |= ops[op, O_MARK] == SUMS
                if ops[op, O_LANE] == lane:
                    collective, since, waits = op, lap, sums
                elif ops[op, O_LANE] != 0 or waits:
                    continue
                elif reads_of(ops, refs, op, lap, collective, since, sign):
                    waits = 1
                    continue
                if not sums or ops[op, O_LANE] == 0:
                    windows[found, PLACE], windows[found, TIMES] = at, times
                    windows[found, STARTS] = ops[op, O_LANE] == lane
                    found += 1
    return found


@kernel("i2 i i1 i2 f1 f1", entry=True)
def exposed_at(
    windows: Array, count: int, kinds: Array, durations: Array, law: Array, exposed: Array
) -> int:
    """Put the ns of collectives that ``count`` rows of windows do not hide into ``exposed``, at
    each clock. ``kinds`` and ``durations``: of each op in its place."""
    for clock in range(exposed.shape[0]):
        whole = gemm = attention = pointwise = comm = 0.0
        times = 1
        for number in range(count + 1):
            at = windows[number, PLACE] if number < count else 0
            if number == count or windows[number, STARTS]:
                saved = most_saved(law, gemm, attention, pointwise, comm)
                whole += times * (comm - saved)
                gemm = attention = pointwise = 0.0
                if number < count:
                    comm, times = float(durations[at, clock]), windows[number, TIMES]
            elif kinds[at] == 0:
                gemm += float(durations[at, clock])
            elif kinds[at] == 1:
                attention += float(durations[at, clock])
            else:
                pointwise += float(durations[at, clock])
        exposed[clock] = whole
    return 0
