"""What rivals play beside each other: GEMMs and their collectives, or two micro-batches.

Chunks of one value have names of their own (``….c3``). The first chunk's write represents the whole
buffer; the others lie in it. Ops are FIFO, so what reads a value waits for all its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import Any, Final, NamedTuple

from simulator.errors import InfeasiblePlanError
from simulator.ops import Collective, Fused, Gemm, Signature
from simulator.overlap import Overlap
from simulator.schedule import EP, TP, OpTemplate, Segment, is_layer_role
from simulator.templates import Templates
from simulator.values import Ref


class Linear(NamedTuple):
    """A GEMM of one row slice. ``gemm``: its signature for a number of tokens; ``tokens``: all of
    them; ``write``: the value that it makes, of ``size`` bytes; ``gathered_bytes``: of its input,
    where ranks gather that."""

    role: str
    row: int
    gemm: Callable[[int], Gemm]
    tokens: int
    write: Ref
    size: int
    weights: tuple[str, ...]
    piece: int = -1
    gathered_bytes: int = 0


def gather_gemm(
    t: Templates, how: Overlap, linear: Linear, local: Ref, whole: Ref
) -> list[OpTemplate]:
    """Return the GEMM on a value that was gathered before, or arrives while it runs: ``local`` is
    this rank's share, ``whole`` the value of all tokens, which others may read, too."""
    s = t.shapes
    if how.method == "none":
        return [_chunk(t, linear, 0, linear.tokens, (t.gathered_ref(local, whole),))]
    ranks, size = s.cluster.tp, linear.gathered_bytes
    if how.method == "fused":
        return [_fused(t, linear, (local,), "all_gather", size, whole)]
    together = how.together if ranks % how.together == 0 else 1
    arriving = [1] * (together - 1) + [together] * (ranks // together - 1)
    ops = [
        t.op(f"{linear.role}.copy", linear.row, _peer_copy(t, chunks * size // ranks), (local,),
             whole if copy == 1 else whole.form(f"c{copy}"), size if copy == 1 else 0, lane=TP,
             piece=copy)
        for copy, chunks in enumerate(arriving, start=1)
    ]  # fmt: skip
    arrived = [op.writes for op in ops]
    first = (local, *arrived.pop(0)) if together > 1 else (local,)
    tokens = together * linear.tokens // ranks
    for chunk, values in enumerate((first, *arrived)):
        ops.append(_chunk(t, linear, chunk, tokens, values))
    return ops


def sum_gemm(
    t: Templates, how: Overlap, linear: Linear, reads: tuple[Ref, ...]
) -> list[OpTemplate]:
    """Return the GEMM and the sum of its value over the ranks, after it or at the same time; the
    sum has the name that ``Templates.summed`` gives it."""
    s = t.shapes
    if how.method == "none":
        return t.summed(_chunk(t, linear, 0, linear.tokens, reads), linear.size)
    ranks, share, summed = s.cluster.tp, linear.size // s.cluster.tp, linear.write.form("rs")
    if how.method == "fused":
        produced = _fused(t, linear, reads, "reduce_scatter", linear.size)
        return [produced, _added(t, linear, (produced.writes[0],), share, summed)]
    if how.method == "push":
        copy = _peer_copy(t, share)
        ops: list[OpTemplate] = []
        for chunk in range(ranks):
            ops.append(_chunk(t, linear, chunk, linear.tokens // ranks, reads))
            if chunk < ranks - 1:
                name = linear.write.form("sent", f"c{chunk}")
                ops.append(
                    t.op(f"{linear.role}.copy", linear.row, copy, ops[-1].writes, name,
                         share, lane=TP, piece=chunk)
                )  # fmt: skip
        parts = tuple(op.writes[0] for op in ops)
        return [*ops, _added(t, linear, parts, share, summed)]
    splits = how.num_splits if how.method == "pipeline" else 1
    if linear.tokens % (splits * ranks):
        raise InfeasiblePlanError(
            f"{linear.role} has {linear.tokens} tokens, which {splits} chunks for {ranks} ranks do "
            "not divide; use fewer chunks.",
            reason="tokens",
        )
    moved = _summed_bytes(t, how, linear) // splits
    scatter = reserved(s.tp_collective("reduce_scatter", moved), how.num_sm)
    ops = []
    for chunk in range(splits):
        ops.append(_chunk(t, linear, chunk, linear.tokens // splits, reads))
        last = chunk == splits - 1
        name = summed if last else summed.form(f"c{chunk}")
        ops.append(
            t.op(f"{linear.role}.rs", linear.row, scatter, ops[-1].writes, name,
                 share if last else 0, lane=TP, piece=chunk if splits > 1 else linear.piece)
        )  # fmt: skip
    return ops


def _summed_bytes(t: Templates, how: Overlap, linear: Linear) -> int:
    """Return the bytes of the products that ranks add up: in FP8 where the scale is known before,
    as TransformerEngine's buffers need it."""
    work = t.shapes.workload
    if not how.fp8:
        return linear.size
    if work.fp8_recipe not in ("delayed", "none"):
        raise InfeasiblePlanError(
            f"{linear.role} sums in FP8 (tp_comm_overlap {how.text}), which takes the scale of an "
            f"earlier step: --fp8-recipe delayed, not {work.fp8_recipe}. Leave fp8 out.",
            reason="fp8",
        )
    # Layers that stay in BF16 have buffers in BF16.
    return linear.size if work.fp8_recipe == "none" else linear.size // t.shapes.element


def reserved(signature: Signature, sms: int) -> Signature:
    """Return the collective with ``sms`` SMs kept free for it."""
    assert isinstance(signature, Collective)
    return signature._replace(reserved_sms=sms)


def _chunk(
    t: Templates, linear: Linear, chunk: int, tokens: int, reads: tuple[Ref, ...]
) -> OpTemplate:
    whole = tokens == linear.tokens
    name = linear.write.form(f"c{chunk}") if chunk else linear.write
    earlier = (linear.write,) if chunk else ()
    gemm = linear.gemm(tokens)._replace(looped=chunk > 0)
    return t.op(
        linear.role, linear.row, gemm, (*reads, *earlier), name,
        0 if chunk else linear.size, weights=linear.weights, piece=linear.piece if whole else chunk,
    )  # fmt: skip


def _peer_copy(t: Templates, size: int) -> Collective:
    s = t.shapes
    nodes, per_node = s.cluster.tp_group
    return Collective("peer_copy", size, nodes, per_node, 0, s.workload.dtype)


def _fused(
    t: Templates, linear: Linear, reads: tuple[Ref, ...], op: str, size: int,
    also: Ref | None = None,
) -> OpTemplate:  # fmt: skip
    nodes, per_node = t.shapes.cluster.tp_group
    collective = Collective(op, size, nodes, per_node, 0, t.shapes.workload.dtype)  # type: ignore[arg-type]
    signature = Fused(linear.gemm(linear.tokens), collective)
    made = _chunk(t, linear, 0, linear.tokens, reads)._replace(signature=signature)
    return made.writing(also, size) if also else made


def _added(
    t: Templates, linear: Linear, reads: tuple[Ref, ...], share: int, write: Ref
) -> OpTemplate:
    """Return the sum of the parts that came from all ranks."""
    s = t.shapes
    signature = s.pointwise("add", s.cluster.tp * share, share)
    return t.op(f"{linear.role}.sum", linear.row, signature, reads, write, share)


# Two micro-batches beside each other --------------------------------------------------------------
# The forward pass of one and the backward pass of the one before it, layer by layer, so that each
# computes while the other's tokens are on their way.
#
# Megatron-LM's ``--overlap-moe-expert-parallel-comm`` (``TransformerLayerSchedulePlan.run`` in
# core/models/common/model_chunk_schedule_plan.py): the first layer goes forward beside the last one
# that goes back. Of a layer, all up to its dispatch is a part, then what runs up to its combine,
# then the rest. Parts take turns, backward first, and each begins with tokens that moved beside the
# other's part. With ``--delay-wgrad-compute`` the experts' weight gradients follow the sending of
# their rows.
#
# A pass back reads values that its own forward pass left. They are marked as ``earlier``, since the
# other micro-batch's values have the same names, and layers are counted as forward does.

Ops = tuple[OpTemplate, ...]
SHARE_OF_LAYER: Final = 2
"""Of a layer's kept bytes: what the pass forward has at most beyond those that the pass back has
freed: a layer's, and as much again while it is computed (assumed)."""


class _PassEnds(NamedTuple):
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
    """Return the op with its values' layers turned, as those of the earlier micro-batch."""
    found = known.get(id(op))
    if found is None:
        reads, writes = (tuple(map(_turned, refs)) for refs in (op.reads, op.writes))
        found = known[id(op)] = op, op._replace(reads=reads, writes=writes, earlier=True)
    return found[1]


def _turned(ref: Ref) -> Ref:
    return ref._replace(layer=-ref.layer, earlier=True)


def _split(segments: Sequence[Segment], layers: int) -> _PassEnds:
    found = _PassEnds([], [], [])
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
