"""Plays ops on this rank, one by one in issue order.

This is what the simulator's engines predict: compute ops run in issue order, a collective is
handed to its lane at its place in that order, and the first reader of its result waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from domino_tune.runtime.clock import Clock, Tick
from domino_tune.runtime.lanes.call import Call, all_gather, all_reduce, reduce_scatter
from domino_tune.runtime.lanes.lane import Handle, Lane
from domino_tune.runtime.ops import attention, edges, layers
from domino_tune.runtime.ops.state import State
from domino_tune.runtime.shards import EDGES
from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.ops import Collective
from simulator.schedule import COMPUTE, RECOMPUTED_SUFFIX, Op, is_weight
from simulator.shapes import GRAD_BYTES

OpFunction = Callable[[State, Op], None]

_BLOCK_FUNCTIONS: Final[dict[str, OpFunction]] = {
    "norm": layers.norm,
    "residual": layers.residual,
    "residual_bwd": layers.residual_bwd,
    "norm_bwd": layers.norm_bwd,
}
FUNCTIONS: Final[dict[str, OpFunction]] = {
    **{f"{b}.{name}": f for b in BLOCKS for name, f in _BLOCK_FUNCTIONS.items()},
    **{f"{b}.{COLUMN_PARALLEL[b]}": layers.column_parallel for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_dgrad": layers.column_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}": layers.row_parallel for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_dgrad": layers.row_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_wgrad.x": layers.joined for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_wgrad.dy": layers.joined for b in BLOCKS},
    "attn.proj_wgrad.x": layers.joined,
    "attn.qk_norm": attention.qk_norm,
    "attn.qk_norm_bwd": attention.qk_norm_bwd,
    "attn.rope": attention.rope,
    "attn.core_attn": attention.core_attn,
    "attn.core_attn_bwd": attention.core_attn_bwd,
    "attn.kv_bwd": attention.kv_bwd,
    "attn.rope_bwd": attention.rope_bwd,
    "mlp.act": layers.act,
    "mlp.act_bwd": layers.act_bwd,
    "embed": edges.embed,
    "embed.post": edges.embed_post,
    "embed_bwd": edges.embed_bwd,
    "head.norm": layers.norm,
    "head.norm_bwd": layers.norm_bwd,
    "head.logits": edges.logits,
    "head.logits_dgrad": edges.logits_dgrad,
    "head.logits_wgrad": edges.logits_wgrad,
    "loss.max": edges.loss_max,
    "loss.sum": edges.loss_sum,
    "loss.grad": edges.loss_grad,
    "step.tp.pack": edges.pack_partial,
    "step.tp.unpack": edges.unpack_partial,
    "step.grad_norm": edges.grad_norm,
    "step.adam": edges.adam,
}
"""Tensor function of every compute role."""


class Passage(NamedTuple):
    """Ops to play, and for each the values to free after it."""

    ops: tuple[Op, ...]
    frees: tuple[tuple[str, ...], ...]


def passage(ops: Sequence[Op], keeps: frozenset[str] = frozenset()) -> Passage:
    """Return ``ops`` and when to free what they read and write: after the last op that reads it,
    but never one of ``keeps``, which others read."""
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            last[name] = index
    frees: list[list[str]] = [[] for _ in ops]
    for name, index in last.items():
        if not is_weight(name) and name not in keeps:
            frees[index].append(name)
    return Passage(tuple(ops), tuple(map(tuple, frees)))


def recomputed(ops: Sequence[Op]) -> frozenset[str]:
    """Return the names of ops that are played again in backward."""
    again = (op.name for op in ops if op.role.endswith(RECOMPUTED_SUFFIX))
    return frozenset(name.removesuffix(RECOMPUTED_SUFFIX) for name in again)


def play(
    state: State,
    lanes: Mapping[int, Lane],
    played: Passage,
    clock: Clock,
    arriving: Mapping[str, Handle] | None = None,
) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Issue every op, and wait for all; ``arriving``: collectives under way, by the value that
    each writes. Return (start, end) of each by ``clock``, ns, and the names
    of the issued ops."""
    values = state.values
    pending: dict[str, Handle] = dict(arriving or {})
    moments: list[Callable[[], tuple[Tick, Tick]]] = []
    launched = []
    clock.start()
    for op, free in zip(played.ops, played.frees, strict=True):
        launched.append(op.name)
        if op.lane == COMPUTE:
            for name in op.reads:
                if name in pending:
                    pending.pop(name).wait()
            start = clock.tick()
            FUNCTIONS[op.role.removesuffix(RECOMPUTED_SUFFIX)](state, op)
            moments.append(partial(_pair, start, clock.tick()))
        else:
            call = _call(state, op)
            values[op.writes[0]] = call.target
            handle = lanes[op.lane].issue(op.name, call)
            pending[op.writes[0]] = handle
            moments.append(handle.ticks)
        for name in free:
            values.pop(name, None)
    for handle in pending.values():
        handle.wait()
    clock.stop()
    ticks = [moment() for moment in moments]
    return [(clock.at_ns(a), clock.at_ns(b)) for a, b in ticks], tuple(launched)


def _call(state: State, op: Op) -> Call:
    signature = op.signature
    assert isinstance(signature, Collective)
    if signature.op == "all_gather":
        source, ranks = state.values[op.reads[0]], signature.ranks
        rows, width = len(source) * ranks, source.shape[1]
        return all_gather(source, ranks, state.rooms.room(op.writes[0], rows, width, source))
    if signature.op == "reduce_scatter":
        return reduce_scatter(state.values[op.reads[0]], signature.ranks)
    return all_reduce(_buffer(state, op), "max" if op.role == "loss.max.ar" else "sum")


def _buffer(state: State, op: Op) -> torch.Tensor:
    """Return the tensor that is reduced in place: a value, or a range of main gradients."""
    shapes = state.shapes
    if op.role == "dp.ar":
        count = op.signature.size_bytes // GRAD_BYTES // shapes.layer_parameters  # type: ignore[union-attr]
        return state.trained.gradient_range(op.layer, op.layer + count - 1)
    if op.role == "step.dp.ar":
        rest = op.signature.size_bytes // GRAD_BYTES - shapes.edge_parameters  # type: ignore[union-attr]
        return state.trained.gradient_range(EDGES, rest // shapes.layer_parameters - 1)
    return state.values[op.reads[0]]


def _pair(start: Tick, end: Tick) -> tuple[Tick, Tick]:
    return start, end
