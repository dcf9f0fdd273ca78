"""The compiler's loop over arrays; ``simulator.compiler`` makes them and has its rules.

Values are numbered where a comm lane writes them: only these are waited for. ``written`` holds, for
a layer and a value, lane × FAR + the number of the collective that wrote it, 0 if none has.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from simulator.kernels import kernel
from simulator.kernels.lives import (
    G_COUNT,
    G_MIRROR,
    G_OPS,
    G_OPS_END,
    G_STRIDE,
    NOTHING,
    O_LANE,
    O_OFFSET,
    O_READS,
    O_READS_END,
    O_SIGNATURE,
    O_WRITES,
    O_WRITES_END,
    R_LAYER,
    R_VALUE,
    layer_of,
)
from simulator.kernels.player import (
    COUNT,
    FAMILY,
    FIRST,
    LANE,
    LANES,
    LAUNCH,
    LEAF,
    LEAF_END,
    NEEDS,
    NUMBER,
    PART,
    REST,
    ROOM,
    SAVED,
    STOPS,
    WAITS,
    WAITS_END,
    WAKE,
    WHOLE,
    between,
)

Array = Any

# Columns of signatures.
N_LAUNCH, N_ROOM, N_NEEDS, N_IN_TWO, N_SAVED, N_WAKE, N_TIME, N_STOPS, N_FAMILY = range(9)
N_LANE, N_WAVES, N_INLINE = range(9, 12)
SIGNATURE_COLUMNS: Final = 12

# Entries of ``s``: what was issued and waited for, the lengths of the tables, and the skew's count.
S_LANES, S_LOWEST, S_STEPS, S_WAITS, S_LEAVES, S_LATE, S_SKEWS, S_SPLITS, S_OPEN = range(9)
ISSUED: Final = 9
WAITED: Final = ISSUED + LANES
ALONE: Final = WAITED + LANES
BESIDE: Final = ALONE + LANES
LEFT: Final = BESIDE + LANES
FLYING: Final = LEFT + LANES
BEFORE: Final = FLYING + LANES
STATE: Final = 4 * LANES
PER: Final = BEFORE + STATE
S_ROWS: Final = PER + LANES
S_SIZE: Final = S_ROWS + LANES

FAR: Final = 1 << 40


@kernel("i1 i2 i2 i2 i1 i i2")
def settled_after(
    s: Array, ops: Array, refs: Array, segments: Array, listed: Array, segment: int, seen: Array
) -> int:
    """Return how many repetitions to unroll: all later ones have the waits of the last of these.

    ``seen``: for each value the first segment that writes it, and the last one so far.
    """
    stride, mirror = segments[segment, G_STRIDE], segments[segment, G_MIRROR]
    begin, end = segments[segment, G_OPS], segments[segment, G_OPS_END]
    sign = 1 if mirror < 0 else -1
    opened = 0
    for lane in range(1, s[S_LANES]):
        opened |= s[WAITED + lane] < s[ISSUED + lane]
    for at in range(begin, end):
        op = listed[at]
        for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
            value = refs[ref, R_VALUE]
            if seen[value, 0] == NOTHING:
                seen[value, 0] = segment
            seen[value, 1] = segment
    if segments[segment, G_COUNT] <= 2:
        return int(segments[segment, G_COUNT])
    latest = 0
    for at in range(begin, end):
        op = listed[at]
        for ref in range(ops[op, O_READS], ops[op, O_READS_END]):
            value = refs[ref, R_VALUE]
            older = opened and NOTHING < seen[value, 0] < segment
            if seen[value, 1] != segment and not older:
                continue
            position, own = ops[op, O_OFFSET] + sign * refs[ref, R_LAYER], 0
            for place in range(begin, end):
                writer = listed[place]
                for write in range(ops[writer, O_WRITES], ops[writer, O_WRITES_END]):
                    if refs[write, R_VALUE] == value:
                        layers = ops[writer, O_OFFSET] + sign * refs[write, R_LAYER] - position
                        if layers >= 0 and layers % stride == 0:
                            own = 1
                            latest = max(latest, layers // stride)
            if older and not own:
                return int(segments[segment, G_COUNT])
    return int(latest + 2)


@kernel("i2 i1 i2", entry=True)
def price(signatures: Array, durations: Array, numbers: Array) -> int:
    """Put the works of the parts of signatures that take ``durations``, without launches inside
    them, and their families into ``numbers``."""
    for index in range(signatures.shape[0]):
        waves = signatures[index, N_WAVES]
        whole = durations[index] + signatures[index, N_INLINE]
        first = whole * (waves - 1) // waves
        numbers[index, WHOLE], numbers[index, FIRST] = whole << 10, first << 10
        numbers[index, REST] = (whole - first) << 10
        numbers[index, FAMILY] = signatures[index, N_FAMILY]
    return 0


# Skew ---------------------------------------------------------------------------------------------


@kernel("i1 i1 i i")
def count_compute(s: Array, rates: Array, left: int, family: int) -> int:
    """Add a compute op to what each lane's next collective waits for: alone, and beside others.

    Flights are counted off as compute goes by, each at its slowdown.
    """
    beside = 0
    while left != 0:
        row, flies = family, 0
        for lane in range(1, s[S_LANES]):
            row = row * s[S_ROWS + lane] + s[FLYING + lane]
            flies |= s[FLYING + lane] != 0
        if not flies:
            break
        row *= LANES
        elapsed = -(-left * rates[row] // 1024)
        for lane in range(1, s[S_LANES]):
            if s[FLYING + lane] != 0:
                elapsed = min(elapsed, -(-s[LEFT + lane] * rates[row + lane] // 1024))
        for lane in range(1, s[S_LANES]):
            if s[FLYING + lane] != 0:
                s[LEFT + lane] -= elapsed * 1024 // rates[row + lane]
                if s[LEFT + lane] <= 0:
                    s[LEFT + lane] = s[FLYING + lane] = 0
        left = max(0, left - elapsed * 1024 // rates[row])
        beside += elapsed
    for lane in range(s[S_LANES]):
        s[ALONE + lane] += left
        s[BESIDE + lane] += beside
    return 0


@kernel("i1 f2 f2 i")
def late_ns(s: Array, alone: Array, beside: Array, lane: int) -> int:
    """Return the ns that a lane's collective waits for later ranks (``SkewFit.wait_us``)."""
    waits = math.hypot(
        between(alone, s[ALONE + lane] / 1000), between(beside, s[BESIDE + lane] / 1000)
    )
    return int(np.rint(waits * 1000))


@kernel("i1 i")
def changed_state(s: Array, lanes: int) -> int:
    """Keep what decides how the next repetition counts; return whether it differs from before.
    ``lanes``: a bit for each lane on which the segment issues collectives."""
    differs = 0
    for lane in range(s[S_LANES]):
        issues = (lanes >> lane) & 1
        state = (
            s[LEFT + lane], s[FLYING + lane], s[ALONE + lane] * issues, s[BESIDE + lane] * issues
        )  # fmt: skip
        for index in range(4):
            differs |= s[BEFORE + 4 * lane + index] != state[index]
            s[BEFORE + 4 * lane + index] = state[index]
    return int(differs)


# Steps --------------------------------------------------------------------------------------------


@kernel("i1 i2 i i i i i i")
def add_step(
    s: Array, steps: Array, lane: int, number: int, launch: int, room: int, needs: int, part: int
) -> int:  # fmt: skip
    """Write a step without waits and idle times; return its row."""
    at = s[S_STEPS]
    s[S_STEPS] += 1
    steps[at, LANE], steps[at, NUMBER], steps[at, LAUNCH] = lane, number, launch
    steps[at, ROOM], steps[at, NEEDS], steps[at, PART] = room, needs, part
    steps[at, WAITS] = steps[at, WAITS_END] = s[S_WAITS]
    steps[at, SAVED] = steps[at, WAKE] = steps[at, STOPS] = 0
    return int(at)


@kernel("i1 i2 i2 i2 i2 i i")
def add_waits(
    s: Array, ops: Array, refs: Array, written: Array, waits: Array, op: int, layer: int
) -> int:
    """Write the waits of an op that no earlier op has done: only a value's first reader waits.
    Return whether a collective reads another comm lane."""
    lane, wrong = ops[op, O_LANE], 0
    for waited in range(1, s[S_LANES]):
        needed = s[WAITED + waited]
        for ref in range(ops[op, O_READS], ops[op, O_READS_END]):
            at = layer + refs[ref, R_LAYER] - s[S_LOWEST]
            if 0 <= at < written.shape[0]:
                writer = written[at, refs[ref, R_VALUE]]
                if writer // FAR == waited:
                    needed = max(needed, writer % FAR)
        if needed == s[WAITED + waited]:
            continue
        if lane != 0:
            wrong |= waited != lane
            continue
        s[WAITED + waited] = needed
        waits[s[S_WAITS], 0] = waited
        waits[s[S_WAITS], 1] = s[ISSUED + waited] - needed
        s[S_WAITS] += 1
    return int(wrong)


@kernel("i1 i2 i2 i2 f2 f2 i1 i1 i2 i2 i2 i i")
def add_op(
    s: Array, ops: Array, refs: Array, signatures: Array, alone: Array, beside: Array,
    rates: Array, late: Array, written: Array, steps: Array, waits: Array, op: int, layer: int,
) -> int:  # fmt: skip
    """Write the steps of an op. Return whether it reads another comm lane."""
    lane, number, first_wait = ops[op, O_LANE], ops[op, O_SIGNATURE], s[S_WAITS]
    wrong = add_waits(s, ops, refs, written, waits, op, layer)
    launch, room = signatures[number, N_LAUNCH], signatures[number, N_ROOM]
    needs, waited = signatures[number, N_NEEDS], 0
    if s[S_SKEWS]:
        if lane != 0:
            waited = late_ns(s, alone, beside, lane)
            s[ALONE + lane] = s[BESIDE + lane] = s[LEFT + lane] = s[FLYING + lane] = 0
            if s[S_SPLITS]:
                s[LEFT + lane] = signatures[number, N_TIME]
                s[FLYING + lane] = signatures[number, N_FAMILY]
        else:
            for wait in range(first_wait, s[S_WAITS]):
                if waits[wait, 1] == 0:  # the collective has finished
                    s[LEFT + waits[wait, 0]] = s[FLYING + waits[wait, 0]] = 0
            count_compute(s, rates, signatures[number, N_TIME], signatures[number, N_FAMILY])
    s[ISSUED + lane] += 2 if waited else 1
    if lane != 0:
        for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
            at = layer + refs[ref, R_LAYER] - s[S_LOWEST]
            written[at, refs[ref, R_VALUE]] = lane * FAR + s[ISSUED + lane]
    if waited:
        row = 0
        while row < s[S_LATE] and late[row] != waited:
            row += 1
        if row == s[S_LATE]:
            late[row] = waited
            s[S_LATE] += 1
        add_step(s, steps, lane, signatures.shape[0] + row, launch, s[S_OPEN], needs, WHOLE)
        launch, needs, room = 0, 0, s[S_OPEN]
    if signatures[number, N_IN_TWO]:
        at = add_step(s, steps, lane, number, launch, 0, 1, FIRST)
        last = add_step(s, steps, lane, number, 0, room, 1, REST)
    else:
        at = add_step(s, steps, lane, number, launch, room, needs, WHOLE)
        steps[at, SAVED], steps[at, WAKE] = signatures[number, N_SAVED], signatures[number, N_WAKE]
        last = at
    steps[last, STOPS] = signatures[number, N_STOPS]
    steps[at, WAITS] = first_wait
    return wrong


@kernel("i2 i2 i i i")
def same_steps(steps: Array, waits: Array, one: int, other: int, count: int) -> int:
    """Return whether ``count`` steps from row ``one`` are those from row ``other``."""
    for index in range(count):
        a, b = one + index, other + index
        for column in range(steps.shape[1]):
            if column in (WAITS, WAITS_END):
                continue
            if steps[a, column] != steps[b, column]:
                return 0
        first, again = steps[a, WAITS], steps[b, WAITS]
        if steps[a, WAITS_END] - first != steps[b, WAITS_END] - again:
            return 0
        for wait in range(steps[a, WAITS_END] - first):
            for column in range(2):
                if waits[first + wait, column] != waits[again + wait, column]:
                    return 0
    return 1


@kernel("i2 i1 i i")
def issue_alike(steps: Array, begins: Array, first: int, last: int) -> int:
    """Return whether repetitions ``first`` to ``last`` issue the same steps: a collective is one,
    or two if it is late. A wait counts all steps since the repetition that it waits for."""
    for repetition in range(first + 1, last):
        count = begins[first + 1] - begins[first]
        if begins[repetition + 1] - begins[repetition] != count:
            return 0
        for index in range(count):
            if steps[begins[first] + index, LANE] != steps[begins[repetition] + index, LANE]:
                return 0
    return 1


@kernel("i1 i2 i2 i2 i1 i i i i2 i2 i2")
def repeat_last(
    s: Array, ops: Array, refs: Array, segments: Array, listed: Array, segment: int, last: int,
    begin: int, written: Array, steps: Array, waits: Array,
) -> int:  # fmt: skip
    """Enter what the repetitions after number ``last``, whose steps begin at row ``begin``, issue,
    write and wait for."""
    rest = segments[segment, G_COUNT] - 1 - last
    sign = segments[segment, G_STRIDE] * (1 if segments[segment, G_MIRROR] < 0 else -1)
    waited = 0
    for lane in range(LANES):
        s[PER + lane] = 0
    for step in range(begin, s[S_STEPS]):
        s[PER + steps[step, LANE]] += 1
        for wait in range(steps[step, WAITS], steps[step, WAITS_END]):
            waited |= 1 << waits[wait, 0]
    for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
        op = listed[at]
        for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
            layer = layer_of(segments, segment, last, ops[op, O_OFFSET]) + refs[ref, R_LAYER]
            place, value = layer - s[S_LOWEST], refs[ref, R_VALUE]
            for number in range(1, rest + 1):
                written[place + number * sign, value] = (
                    written[place, value] + number * s[PER + ops[op, O_LANE]]
                )
    for lane in range(s[S_LANES]):
        s[ISSUED + lane] += rest * s[PER + lane]
        if (waited >> lane) & 1:
            s[WAITED + lane] += rest * s[PER + lane]
    return int(rest)


@kernel("i1 i2 i2 i2 i1 i i")
def merge(
    s: Array, steps: Array, waits: Array, leaves: Array, begins: Array, head: int, rest: int
) -> int:
    """Write the leaves of ``head`` repetitions; the last one is played ``rest`` more times. A
    repetition with the same steps as the previous one joins its leaf, and its steps are dropped."""
    to, kept, kept_count = begins[0], NOTHING, 0
    for repetition in range(head):
        begin, count = begins[repetition], begins[repetition + 1] - begins[repetition]
        times = 1 + (rest if repetition == head - 1 else 0)
        if kept >= 0 and count == kept_count and same_steps(steps, waits, kept, begin, count):
            leaves[s[S_LEAVES] - 1, COUNT] += times
            continue
        for index in range(count):
            for column in range(steps.shape[1]):
                steps[to + index, column] = steps[begin + index, column]
        leaf = s[S_LEAVES]
        leaves[leaf, LEAF], leaves[leaf, LEAF_END], leaves[leaf, COUNT] = to, to + count, times
        s[S_LEAVES] += 1
        kept, kept_count = to, count
        to += count
    s[S_STEPS] = to
    return 0


@kernel("i1 i2 i2 i2 i2 i1 f2 f2 i1 i1 i2 i2 i2 i2 i1 i2 i1", entry=True)
def compile_part(
    s: Array, ops: Array, refs: Array, signatures: Array, segments: Array, listed: Array,
    alone: Array, beside: Array, rates: Array, late: Array, written: Array, steps: Array,
    waits: Array, leaves: Array, begins: Array, seen: Array, counted: Array,
) -> int:  # fmt: skip
    """Write steps, waits and leaves of a micro-batch; return NOTHING, or the op that reads another
    comm lane. ``written`` is zero, ``seen`` NOTHING."""
    for entry in range(ALONE, PER):
        s[entry] = 0
    for segment in range(segments.shape[0]):
        count, lanes = segments[segment, G_COUNT], 0
        for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
            if ops[listed[at], O_LANE] != 0:
                lanes |= 1 << ops[listed[at], O_LANE]
        settled = min(count, settled_after(s, ops, refs, segments, listed, segment, seen))
        head, begins[0] = 0, s[S_STEPS]
        while head < count:
            differs = changed_state(s, lanes)
            alike = issue_alike(steps, begins, max(0, head + 1 - settled), head)
            if head >= settled and not differs and alike:
                break
            for lane in range(LANES):
                counted[lane], counted[LANES + lane] = s[ALONE + lane], s[BESIDE + lane]
            for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
                op = listed[at]
                layer = layer_of(segments, segment, head, ops[op, O_OFFSET])
                if add_op(
                    s, ops, refs, signatures, alone, beside, rates, late, written, steps, waits,
                    op, layer,
                ):  # fmt: skip
                    return int(op)
            head += 1
            begins[head] = s[S_STEPS]
        rest = 0
        if head < count:
            rest = repeat_last(
                s, ops, refs, segments, listed, segment, head - 1, begins[head - 1], written, steps,
                waits,
            )  # fmt: skip
            for lane in range(s[S_LANES]):
                if s[PER + lane] == 0:
                    s[ALONE + lane] += rest * (s[ALONE + lane] - counted[lane])
                    s[BESIDE + lane] += rest * (s[BESIDE + lane] - counted[LANES + lane])
        merge(s, steps, waits, leaves, begins, head, rest)
    return NOTHING
