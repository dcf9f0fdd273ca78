"""Ops of GEMMs whose collectives are hidden chunk by chunk, or tile by tile (``overlap``).

Chunks of one value have names of their own (``….c3``). The first chunk's write represents the whole
buffer; the others lie in it. Ops are FIFO, so what reads a value waits for all its chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simulator.errors import InfeasiblePlanError
from simulator.ops import Collective, Fused, Gemm, Signature
from simulator.overlap import Overlap
from simulator.schedule import TP, OpTemplate, Ref
from simulator.templates import Templates


class Linear(NamedTuple):
    """A GEMM of one row slice. ``gemm``: its signature for a number of tokens; ``tokens``: all of
    them; ``write``: the value that it makes, of ``size`` bytes; ``gathered_bytes``: of its input,
    where ranks gather that."""

    role: str
    row: int
    gemm: Callable[[int], Gemm]
    tokens: int
    write: str
    size: int
    weights: tuple[str, ...]
    piece: int = -1
    gathered_bytes: int = 0


def gather_gemm(
    t: Templates, how: Overlap, linear: Linear, local: Ref, whole: str
) -> list[OpTemplate]:
    """Return the GEMM on a value that arrives while it runs: ``local`` is this rank's share,
    ``whole`` the name of all tokens' value, which others may read, too."""
    s = t.shapes
    ranks, size = s.cluster.tp, linear.gathered_bytes
    if how.method == "fused":
        return [_fused(t, linear, (local,), "all_gather", size, whole)]
    together = how.together if ranks % how.together == 0 else 1
    arriving = [1] * (together - 1) + [together] * (ranks // together - 1)
    ops = [
        t.op(f"{linear.role}.copy", linear.row, _peer_copy(t, chunks * size // ranks), (local,),
             whole if copy == 1 else f"{whole}.c{copy}", size if copy == 1 else 0, lane=TP,
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
    """Return the GEMM, the sum of whose value over the ranks begins while it runs; the sum has the
    name that ``Templates.summed`` gives it."""
    s = t.shapes
    ranks, share, summed = s.cluster.tp, linear.size // s.cluster.tp, f"{linear.write}.rs"
    if how.method == "fused":
        produced = _fused(t, linear, reads, "reduce_scatter", linear.size, "")
        return [produced, _added(t, linear, (produced.writes[0],), share, summed)]
    if how.method == "push":
        copy = _peer_copy(t, share)
        ops: list[OpTemplate] = []
        for chunk in range(ranks):
            ops.append(_chunk(t, linear, chunk, linear.tokens // ranks, reads))
            if chunk < ranks - 1:
                name = f"{linear.write}.sent.c{chunk}"
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
        name = summed if last else f"{summed}.c{chunk}"
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
    name = linear.write if chunk == 0 else f"{linear.write}.c{chunk}"
    earlier = (Ref(0, linear.write),) if chunk else ()
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
    t: Templates, linear: Linear, reads: tuple[Ref, ...], op: str, size: int, also: str
) -> OpTemplate:
    nodes, per_node = t.shapes.cluster.tp_group
    collective = Collective(op, size, nodes, per_node, 0, t.shapes.workload.dtype)  # type: ignore[arg-type]
    signature = Fused(linear.gemm(linear.tokens), collective)
    made = t.op(
        linear.role, linear.row, signature, reads, linear.write, linear.size,
        weights=linear.weights, piece=linear.piece,
    )  # fmt: skip
    return made.writing(Ref(0, also), size) if also else made


def _added(
    t: Templates, linear: Linear, reads: tuple[Ref, ...], share: int, write: str
) -> OpTemplate:
    """Return the sum of the parts that came from all ranks."""
    s = t.shapes
    signature = s.pointwise("add", s.cluster.tp * share, share)
    return t.op(f"{linear.role}.sum", linear.row, signature, reads, write, share)
