"""Live values over arrays: which bytes are in use at each op (``simulator.memory``).

It has the columns of a schedule's tables, which the compiler's and the planner's kernels share.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.kernels import kernel

Array = Any

# Columns of ops, of the values that they read and write, and of segments.
O_LANE, O_SIGNATURE, O_OFFSET, O_READS, O_READS_END, O_WRITES, O_WRITES_END, O_MARK = range(8)
R_VALUE, R_LAYER, R_STORAGE, R_BYTES, R_LOGIT_BYTES = range(5)
G_OPS, G_OPS_END, G_COUNT, G_FIRST, G_STRIDE, G_MIRROR = range(6)
OP_COLUMNS: Final = 8
REF_COLUMNS: Final = 5
SEGMENT_COLUMNS: Final = 6
FORWARD, TURN, BACKWARD, AGAIN, STEPS = range(5)
PHASES: Final = 5
"""Phases of the last micro-batch: forward, the loss's sums, backward, backward that recomputes, and
the optimizer's step."""
SUMS, RECOMPUTES, UPDATES = 1, 2, 3
"""Marks of ops: the loss's sums, what backward computes again, and the optimizer's step."""
PEAK, PEAK_LOGITS, HELD, HELD_LOGITS = range(4)
PHASE_COLUMNS: Final = 4
NOTHING: Final = -1


@kernel("i2 i i i")
def layer_of(segments: Array, segment: int, repetition: int, offset: int) -> int:
    """Return the layer of an op in a repetition (``Segment.layer``)."""
    position = segments[segment, G_FIRST] + repetition * segments[segment, G_STRIDE] + offset
    mirror = segments[segment, G_MIRROR]
    return int(position if mirror < 0 else mirror - position)


@kernel("i1 i2 i2 i2 i1 i1 i1 i2 i1 i1 i1", entry=True)
def list_ops(
    rows: Array, table: Array, segments: Array, parts: Array, places: Array, kinds: Array,
    listed: Array, ops: Array, numbers: Array, times: Array, size: Array,
) -> int:  # fmt: skip
    """Copy the ops of ``rows``, each once, from their ``table`` into ``ops``; number them and their
    signatures in the order in which they come. ``listed``: the op of each row; ``numbers``: of the
    signatures in the table; ``times``: how often each is played; ``size``: how many ops and
    signatures. ``places`` of the table's ops and ``kinds`` of its signatures start as NOTHING."""
    size[0] = size[1] = 0
    for at in range(rows.shape[0]):
        row = rows[at]
        if places[row] == NOTHING:
            op, kind = size[0], table[row, O_SIGNATURE]
            places[row] = op
            size[0] += 1
            for column in range(OP_COLUMNS):
                ops[op, column] = table[row, column]
            if kinds[kind] == NOTHING:
                kinds[kind] = size[1]
                numbers[size[1]], times[size[1]] = kind, 0
                size[1] += 1
            ops[op, O_SIGNATURE] = kinds[kind]
        listed[at] = places[row]
    for part in range(parts.shape[0]):
        for segment in range(parts[part, 0], parts[part, 1]):
            for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
                times[ops[listed[at], O_SIGNATURE]] += parts[part, 2] * segments[segment, G_COUNT]
    return 0


@kernel("i2 i2 i2 i1", entry=True)
def span_layers(ops: Array, refs: Array, segments: Array, found: Array) -> int:
    """Put the lowest and the highest layer that segments can name into ``found``."""
    offset = layer = low = high = 0
    for op in range(ops.shape[0]):
        offset = max(offset, abs(ops[op, O_OFFSET]))
    for ref in range(refs.shape[0]):
        layer = max(layer, abs(refs[ref, R_LAYER]))
    for segment in range(segments.shape[0]):
        for end in range(2):
            at = layer_of(segments, segment, end * (segments[segment, G_COUNT] - 1), 0)
            low = at if segment + end == 0 else min(low, at)
            high = at if segment + end == 0 else max(high, at)
    found[0], found[1] = low - offset - layer, high + offset + layer
    return 0


@kernel("i2 i2 i1 i2 i", entry=True)
def pick_refs(ops: Array, refs: Array, places: Array, found: Array, column: int) -> int:
    """Copy the refs to values that count into ``found``, number their entries of ``column`` without
    gaps, and put their ranges into ``ops``; return the number of distinct entries. A storage counts
    if it takes bytes, a value if a comm lane writes it. ``places`` starts as NOTHING."""
    placed = used = 0
    for op in range(ops.shape[0]):
        for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
            counts = refs[ref, R_BYTES] > 0 if column == R_STORAGE else ops[op, O_LANE] != 0
            if counts and places[refs[ref, column]] == NOTHING:
                places[refs[ref, column]] = placed
                placed += 1
    for op in range(ops.shape[0]):
        begin, middle = used, used
        for ref in range(ops[op, O_READS], ops[op, O_WRITES_END]):
            if ref == ops[op, O_READS_END]:
                middle = used
            if places[refs[ref, column]] != NOTHING:
                for one in range(refs.shape[1]):
                    found[used, one] = refs[ref, one]
                found[used, column] = places[refs[ref, column]]
                used += 1
        if ops[op, O_READS_END] == ops[op, O_WRITES_END]:
            middle = used
        ops[op, O_READS], ops[op, O_READS_END] = begin, middle
        ops[op, O_WRITES], ops[op, O_WRITES_END] = middle, used
    return placed


@kernel("i2 i2 i1 i1", entry=True)
def phases_of(ops: Array, segments: Array, listed: Array, phases: Array) -> int:
    """Put the phase of each segment of a micro-batch into ``phases``."""
    phase = FORWARD
    for segment in range(segments.shape[0]):
        begin, again = segments[segment, G_OPS], 0
        for at in range(begin, segments[segment, G_OPS_END]):
            again |= ops[listed[at], O_MARK] == RECOMPUTES
        if ops[listed[begin], O_MARK] == SUMS:
            phase = TURN
        elif ops[listed[begin], O_MARK] == UPDATES:
            phase = STEPS
        elif again:
            phase = AGAIN
        elif phase == TURN:
            phase = BACKWARD
        phases[segment] = phase
    return 0


@kernel("i2 i2 i2 i1 i1 i i2 i2 i2", entry=True)
def live_bytes(
    ops: Array, refs: Array, segments: Array, listed: Array, phases: Array, lowest: int,
    last: Array, freed: Array, found: Array,
) -> int:  # fmt: skip
    """Put the bytes of live values at the peak and the end of each phase into ``found``; return the
    number of ops that are played. A value lives from the op that writes it to the last one that
    reads it. ``last``: [layers, storages], any numbers; ``freed``: [ops, 2], zero, like
    ``found``."""
    played = 0
    for segment in range(segments.shape[0]):
        for repetition in range(segments[segment, G_COUNT]):
            for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
                op = listed[at]
                layer = layer_of(segments, segment, repetition, ops[op, O_OFFSET]) - lowest
                for ref in range(ops[op, O_READS], ops[op, O_WRITES_END]):
                    last[layer + refs[ref, R_LAYER], refs[ref, R_STORAGE]] = played
                played += 1
    played = live = logits = 0
    for segment in range(segments.shape[0]):
        phase = phases[segment]
        for repetition in range(segments[segment, G_COUNT]):
            for at in range(segments[segment, G_OPS], segments[segment, G_OPS_END]):
                op = listed[at]
                layer = layer_of(segments, segment, repetition, ops[op, O_OFFSET]) - lowest
                for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
                    size, of_logits = refs[ref, R_BYTES], refs[ref, R_LOGIT_BYTES]
                    live += size
                    logits += of_logits
                    end = last[layer + refs[ref, R_LAYER], refs[ref, R_STORAGE]]
                    freed[end, 0] += size
                    freed[end, 1] += of_logits
                more = live > found[phase, PEAK]
                if more or (live == found[phase, PEAK] and logits > found[phase, PEAK_LOGITS]):
                    found[phase, PEAK], found[phase, PEAK_LOGITS] = live, logits
                live -= freed[played, 0]
                logits -= freed[played, 1]
                found[phase, HELD], found[phase, HELD_LOGITS] = live, logits
                played += 1
    return played
