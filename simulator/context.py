"""Context parallelism: how a rank's queries meet the keys of tokens that other ranks hold.

Each of cp ranks holds two of 2·cp chunks of every sequence, i and 2·cp − 1 − i, so that causal
masks leave all ranks the same work. As in TransformerEngine
(pytorch/attention/dot_product_attention/context_parallel.py):

- ``p2p``: keys and values go around a ring. The first step is a rank's own tokens, causal; in every
  other one half of the queries meet all keys, or all queries half of them: the same FLOPs. The next
  keys are on their way meanwhile, and in backward the gradients of the ones before. Results are
  merged step by step.
- ``all_gather``: keys and values are gathered, in backward again, and their gradients scattered.
  Each chunk of queries then meets the keys before it; that is counted for the first and the last
  chunk, whose sum is that of every pair.
- ``a2a``: ranks exchange tokens for heads (DeepSpeed-Ulysses, arXiv 2309.14509), so that each has
  1/cp of the heads of whole sequences. A tensor is copied once before an exchange that gives whole
  sequences and twice after it, to restore the order of the chunks, and the other way round for the
  exchange back.
"""

from __future__ import annotations

from simulator.ops import Attention, Collective, CollectiveKind, Direction
from simulator.schedule import CP, OpTemplate
from simulator.templates import Templates
from simulator.values import Ref

Ops = list[OpTemplate]


def context_attention(t: Templates, row: int, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    """Return the forward ops of slice ``row`` from its queries, keys and values, ``inputs``, to the
    projection's input, ``write``."""
    return _FORWARD[t.shapes.workload.cp_comm](t, row, inputs, write)


def context_attention_bwd(
    t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: Ref
) -> Ops:
    """Return the backward ops of slice ``row``, from the gradient of its output, ``grad``, to the
    gradient of its inputs, ``write``."""
    return _BACKWARD[t.shapes.workload.cp_comm](t, row, grad, inputs, write)


# Ring ---------------------------------------------------------------------------------------------


def _ring(t: Templates, row: int, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    s, size, last = t.shapes, t.shapes.width_bytes("core_attn", row), t.shapes.cluster.cp - 1
    ops: Ops = []
    keys, merged = inputs, write.form(0)
    for step in range(last + 1):
        message = _message(t, row, "attn.cp_p2p", keys, Ref("attn.cp_kv", row, step), step)
        reads = tuple(dict.fromkeys((*inputs, *keys)))
        ops += message
        ops.append(
            t.op("attn.core_attn", row, _ring_step(t, row, step), reads, write.form(step), size,
                 piece=step)
        )  # fmt: skip
        if step:
            parts = merged, *ops[-1].writes
            merged = write if step == last else write.form("to", step)
            add = s.pointwise("add", 2 * size, size)
            ops.append(t.op("attn.cp_merge", row, add, parts, merged, size, piece=step))
        keys = message[0].writes if message else ()
    return ops


def _ring_bwd(t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    s, size, last = t.shapes, t.shapes.width_bytes("qkv", row), t.shapes.cluster.cp - 1
    add, context = s.pointwise("add", 2 * size, size), Ref("attn.core_attn", row)
    ops: Ops = []
    keys, summed = inputs, write
    for step in range(last + 1):
        message = _message(t, row, "attn.cp_p2p_bwd", keys, write.form("kv", step), step)
        reads = tuple(dict.fromkeys((grad, *inputs, context, *keys)))
        signature = _ring_step(t, row, step, "backward")
        ops += message
        ops.append(
            t.op("attn.core_attn_bwd", row, signature, reads, write.form(step), size, piece=step)
        )
        if step:
            parts = summed, *ops[-1].writes
            name = write if step == last else write.form("to", step)
            ops.append(t.op("attn.cp_merge_bwd", row, add, parts, name, size, piece=step))
        ops += _message(t, row, "attn.cp_grad_bwd", ops[-1].writes, write.form("grad", step), step)
        summed = ops[-1].writes[0]
        keys = message[0].writes if message else ()
    return ops


def _ring_step(t: Templates, row: int, step: int, direction: Direction = "forward") -> Attention:
    own = _attention(t, row, len(t.shapes.spans[row]), direction=direction)
    return own._replace(causal=False, kv_seq=own.seq // 2) if step else own


def _message(
    t: Templates, row: int, role: str, value: tuple[Ref, ...], write: Ref, step: int
) -> Ops:
    """Return the op that sends the keys and values of slice ``row``, or their gradients, to the
    next rank of the ring; the last step sends nothing."""
    s, (nodes, _) = t.shapes, t.shapes.cluster.cp_group
    if not s.exchanges_context or step == s.cluster.cp - 1:
        return []
    pair = (1, 2) if nodes == 1 else (2, 1)
    signature = Collective("send_recv", s.kv_bytes(row), *pair, 0, s.workload.dtype)
    return [t.op(role, row, signature, value, write, s.kv_bytes(row), lane=CP, piece=step)]


# Gathered keys ------------------------------------------------------------------------------------


def _gathering(t: Templates, row: int, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    size = t.shapes.width_bytes("core_attn", row)
    ops = _gathered(t, row, "", inputs, Ref("attn.cp_kv", row))
    reads = (*inputs, *ops[-1].writes)
    for piece, signature in enumerate(_chunks(t, row)):
        name, part = (write, size) if piece else (write.form(piece), 0)
        ops.append(t.op("attn.core_attn", row, signature, reads, name, part, piece=piece))
        reads = (*reads, *ops[-1].writes)
    return ops


def _gathering_bwd(t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    s, whole = t.shapes, t.shapes.cluster.cp * t.shapes.kv_bytes(row)
    size, moved = s.width_bytes("qkv", row), s.kv_bytes(row)
    ops = _gathered(t, row, "_bwd", inputs, write.form("kv"))
    reads = (grad, *inputs, Ref("attn.core_attn", row), *ops[-1].writes)
    for piece, signature in enumerate(_chunks(t, row, "backward")):
        name, part = write.form(piece), 0 if piece else size - moved + whole
        ops.append(t.op("attn.core_attn_bwd", row, signature, reads, name, part, piece=piece))
        reads = (*reads, *ops[-1].writes)
    if s.exchanges_context:
        scatter = _collective(t, "reduce_scatter", whole)
        ops.append(
            t.op("attn.cp_rs_bwd", row, scatter, ops[-1].writes, write.form("rs"), moved, lane=CP)
        )
    parts = tuple(ref for op in ops[-3:] for ref in op.writes)
    order = s.pointwise("copy", moved, moved)
    return [*ops, t.op("attn.cp_order_grad_bwd", row, order, parts, write, size)]


def _gathered(t: Templates, row: int, suffix: str, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    """Return the gather of keys and values, and the copy that puts their chunks in order."""
    s, whole = t.shapes, t.shapes.cluster.cp * t.shapes.kv_bytes(row)
    ops: Ops = []
    if s.exchanges_context:
        gather = _collective(t, "all_gather", whole)
        ops.append(
            t.op(f"attn.cp_ag{suffix}", row, gather, inputs, write.form("ag"), whole, lane=CP)
        )
    reads = ops[-1].writes if ops else inputs
    order = s.pointwise("copy", whole, whole)
    return [*ops, t.op(f"attn.cp_order{suffix}", row, order, reads, write, whole)]


def _chunks(
    t: Templates, row: int, direction: Direction = "forward"
) -> tuple[Attention, Attention]:
    half, whole = len(t.shapes.spans[row]) // 2, t.shapes.workload.seq_length
    first = _attention(t, row, half, direction=direction)
    return first, first._replace(kv_seq=whole)


# Heads for tokens ---------------------------------------------------------------------------------


def _exchanging(t: Templates, row: int, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    s, size = t.shapes, t.shapes.width_bytes("core_attn", row)
    ops = _exchange(t, row, "", inputs, Ref("attn.cp_qkv", row), _parts(t, row))
    whole = _attention(t, row, s.workload.seq_length, s.cluster.cp)
    inside = Ref("attn.cp_core", row)
    ops.append(t.op("attn.core_attn", row, whole, ops[-1].writes, inside, size))
    return [*ops, *_exchange(t, row, "_back", ops[-1].writes, write, {"out": size})]


def _exchanging_bwd(t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: Ref) -> Ops:
    s, size = t.shapes, t.shapes.width_bytes("core_attn", row)
    ops = _exchange(t, row, "_bwd", (grad,), write.form("cp_out"), {"out": size})
    whole = _attention(t, row, s.workload.seq_length, s.cluster.cp, "backward")
    kept = (Ref("attn.cp_qkv", row), Ref("attn.cp_core", row))
    reads = (*ops[-1].writes, *kept)
    size = s.width_bytes("qkv", row)
    ops.append(t.op("attn.core_attn_bwd", row, whole, reads, write.form("cp"), size))
    return [*ops, *_exchange(t, row, "_back_bwd", ops[-1].writes, write, _parts(t, row))]


def _parts(t: Templates, row: int) -> dict[str, int]:
    """Return the tensors that go one by one, and their bytes."""
    half = t.shapes.kv_bytes(row) // 2
    return {"q": t.shapes.width_bytes("core_attn", row), "k": half, "v": half}


def _exchange(
    t: Templates, row: int, suffix: str, source: tuple[Ref, ...], write: Ref,
    parts: dict[str, int],
) -> Ops:  # fmt: skip
    """Return copies, all-to-alls and copies of ``parts``; the last op writes ``write``. A part is
    exchanged while the next one is copied."""
    before, behind = (2, 1) if "_back" in suffix else (1, 2)
    ops: Ops = []
    moved: list[tuple[Ref, ...]] = []
    reads: tuple[Ref, ...] = ()
    for piece, (name, size) in enumerate(parts.items()):
        pack = t.shapes.pointwise("copy", before * size, before * size)
        packed = write.form(name, "packed")
        ops.append(t.op(f"attn.cp_pack{suffix}", row, pack, source, packed, size, piece=piece))
        if t.shapes.exchanges_context:
            ops.append(
                t.op(f"attn.cp_a2a{suffix}", row, _collective(t, "all_to_all", size),
                     ops[-1].writes, write.form(name, "a2a"), size, lane=CP, piece=piece)
            )  # fmt: skip
        moved.append(ops[-1].writes)
    for piece, (moving, size) in enumerate(zip(moved, parts.values(), strict=True)):
        unpack = t.shapes.pointwise("copy", behind * size, behind * size)
        last = piece == len(parts) - 1
        made, held = (write, sum(parts.values())) if last else (write.form(piece), 0)
        reads = (*reads, *moving)
        ops.append(t.op(f"attn.cp_unpack{suffix}", row, unpack, reads, made, held, piece=piece))
        reads = (*reads, *ops[-1].writes)
    return ops


# Shared -------------------------------------------------------------------------------------------


def _attention(
    t: Templates, row: int, length: int, share: int = 1, direction: Direction = "forward"
) -> Attention:
    """Return the core of ``length`` causal queries and as many keys, with 1/``share`` of the
    heads."""
    s = t.shapes
    return Attention(
        s.rows[row], s.heads // share, s.kv_heads // share, length, s.model.head_dim, True,
        direction, s.workload.math, s.model.attn_logit_softcapping > 0,
        direction == "backward" and s.workload.implementation.deterministic_attention,
        v_head_dim=s.model.v_head_dim,
    )  # fmt: skip


def _collective(t: Templates, op: CollectiveKind, size_bytes: int) -> Collective:
    return Collective(op, size_bytes, *t.shapes.cluster.cp_group, 0, t.shapes.workload.dtype)


_FORWARD = {"p2p": _ring, "all_gather": _gathering, "a2a": _exchanging}
_BACKWARD = {"p2p": _ring_bwd, "all_gather": _gathering_bwd, "a2a": _exchanging_bwd}
