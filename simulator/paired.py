"""Two micro-batches beside each other: the forward pass of one and the backward pass of the one
before it, layer by layer, so that each computes while the other's tokens are on their way.

Megatron-LM's ``--overlap-moe-expert-parallel-comm`` (``TransformerLayerSchedulePlan.run`` in
core/models/common/model_chunk_schedule_plan.py): the first layer goes forward beside the last one
that goes back. Of a layer, all up to its dispatch is a part, then what runs up to its combine, then
the rest. Parts take turns, backward first, and each begins with tokens that moved beside the
other's part. With ``--delay-wgrad-compute`` the experts' weight gradients follow the sending of
their rows.

A pass back reads values that its own forward pass left. Here their names begin with ``PREFIX``,
since the other micro-batch's values have the same ones, and layers are counted as forward does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import Any, Final, NamedTuple

from simulator.schedule import EP, PREFIX, OpTemplate, Ref, Segment, is_layer_role

Ops = tuple[OpTemplate, ...]
SHARE_OF_LAYER: Final = 2
"""Of a layer's kept bytes: what the pass forward has at most beyond those that the pass back has
freed: a layer's, and as much again while it is computed (assumed)."""


class _Pass(NamedTuple):
    """What a pass plays before its layers, in each, and after them."""

    before: list[Segment]
    layers: list[Ops]
    after: list[Segment]


Known = dict[int, tuple[OpTemplate, OpTemplate]]
"""By number of an op: the op, and what it is in a part of two micro-batches."""


def paired(
    forward: Sequence[Segment], backward: Sequence[Segment], layers: tuple[int, int],
    shared: dict[Any, Any], *, delays_wgrads: bool,
) -> list[Segment]:  # fmt: skip
    """Return the segments of a pass forward beside a pass back of a micro-batch before, each of as
    many ``layers``. ``shared``, of the templates, keeps turned ops, so that a table of ops has each
    of them once."""
    known: Known = shared.setdefault(paired, {})
    ahead, back = layers
    f = _split(forward, ahead)
    b = _split([_turned_segment(one, back, known) for one in backward], back)
    merged = [
        _merged(*both, delays_wgrads=delays_wgrads)
        for both in zip_longest(f.layers, b.layers, fillvalue=())
    ]
    return [*b.before, *f.before, *_segments(merged, back), *b.after, *f.after]


def _turned_segment(segment: Segment, layers: int, known: Known) -> Segment:
    """Return a segment of a pass back, which counts layers from its first position; what stands
    outside of the layers already counts them as forward does."""
    last = layers - 1
    return replace(
        segment, templates=tuple(_turned_op(op, known) for op in segment.templates), mirror=-1,
        paired=last, first=segment.first if segment.mirror >= 0 else last - segment.first,
    )  # fmt: skip


def _turned_op(op: OpTemplate, known: Known) -> OpTemplate:
    """Return the op with its values' layers turned and their names marked."""
    found = known.get(id(op))
    if found is None:
        reads, writes = (tuple(map(_turned, refs)) for refs in (op.reads, op.writes))
        found = known[id(op)] = op, op._replace(reads=reads, writes=writes, earlier=True)
    return found[1]


def _turned(ref: Ref) -> Ref:
    return Ref(-ref.layer, f"{PREFIX}{ref.name}")


def _split(segments: Sequence[Segment], layers: int) -> _Pass:
    found = _Pass([], [], [])
    for segment in segments:
        for repetition in range(segment.count):
            position = segment.first + repetition * segment.stride
            if is_layer_role(segment.templates[0].role) and 0 <= position < layers:
                found.layers.append(tuple(segment.templates))
            else:
                edge = found.after if found.layers else found.before
                edge.append(replace(segment, count=1, first=position))
    return found


def _merged(forward: Ops, backward: Ops, *, delays_wgrads: bool) -> Ops:
    """Return the ops of a layer that goes forward and of one that goes back, in turns."""
    ahead, back = list(_parts(forward)), list(_back_parts(backward, delays_wgrads=delays_wgrads))
    ops = list[OpTemplate]()
    for behind, before in zip_longest(back, ahead, fillvalue=()):
        ops += [*behind, *before]
    return tuple(ops)


def _parts(ops: Ops) -> Iterator[Ops]:
    """Yield a layer's ops up to each of its exchanges, and the rest."""
    begin = 0
    for index, op in enumerate(ops):
        last = index + 1 == len(ops) or ops[index + 1].lane != EP
        if op.lane == EP and last:
            yield ops[begin : index + 1]
            begin = index + 1
    yield ops[begin:]


def _back_parts(ops: Ops, *, delays_wgrads: bool) -> Iterator[Ops]:
    """Yield those of a pass back: its second exchange follows the experts' weight gradients, unless
    these wait, and then follow it."""
    parts = list(_parts(ops))
    if len(parts) < 3:
        yield from parts
        return
    sends, experts, rest = parts[0], parts[1], parts[2]
    wgrads = tuple(op for op in (*experts, *rest) if _is_expert_wgrad(op))
    exchange = tuple(op for op in experts if op.lane == EP)
    dgrads = tuple(op for op in experts if op.lane != EP and not _is_expert_wgrad(op))
    others = tuple(op for op in rest if not _is_expert_wgrad(op))
    yield sends
    yield (*dgrads, *exchange, *wgrads) if delays_wgrads else (*dgrads, *wgrads, *exchange)
    yield others


def _is_expert_wgrad(op: OpTemplate) -> bool:
    return op.role in ("mlp.fc1_wgrad", "mlp.fc2_wgrad")


def _segments(layers: Sequence[Ops], count: int) -> Iterator[Segment]:
    """Yield the layers one after the other; like ones are repetitions."""
    position = 0
    for _, same in groupby(layers, key=lambda ops: tuple(map(id, ops))):
        templates, *more = same
        repeats = 1 + len(more)
        yield Segment(templates=templates, count=repeats, first=position, paired=count - 1)
        position += repeats
