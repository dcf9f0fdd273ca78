"""Attention, norms of queries and keys, and rotary embedding on packed tensors: queries, keys and
values are [tokens, (heads + 2·kv_heads)·head_dim]. Where queries and keys are normalised, they have
a tensor of their own, [tokens, (heads + kv_heads)·head_dim]."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from domino_tune.runtime.ops import State
from domino_tune.runtime.ops.pointwise_formulas import wide
from simulator.schedule import Op
from simulator.specs import ModelSpec
from simulator.values import Ref

# Rotary embedding ---------------------------------------------------------------------------------
# By how much each pair of a head's elements turns from position to position.


def rotary_speeds(model: ModelSpec) -> torch.Tensor:
    """Return radians a position, fp64, [head_dim / 2].

    With ``rope_scaling_factor``, as in Llama 3.1 (arXiv 2407.21783; Megatron-LM's
    ``--use-rope-scaling``): pairs that turn less than ``rope_low_freq_factor`` times in the
    original length turn that much slower, those above ``rope_high_freq_factor`` times as before,
    and those between by a mean of both.
    """
    half = torch.arange(0, model.head_dim, 2, dtype=torch.float64)
    speeds = model.rope_theta ** (-half / model.head_dim)
    if model.rope_scaling_factor <= 1:
        return speeds
    turns = model.original_max_position_embeddings * speeds / (2 * math.pi)
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return speeds * (kept + (1 - kept) / model.rope_scaling_factor)


def core_attn(state: State, op: Op) -> None:
    """Write causal softmax(QKᵀ)V; save its autograd graph for the backward op."""
    with torch.set_grad_enabled(op.name not in state.recomputed):
        leaves = query, key, value = _leaves(state, op)
        mask = causal_mask(query.shape[2], key.shape[2])
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        result = mixed.transpose(1, 2).reshape(len(state.read(op, 0)), -1)
    state.save(op, (leaves, result))
    state.write(op, result.detach())


def causal_mask(queries: int, keys: int) -> Any:
    """Return torch's mask of causal queries that end with the last key; None where there are as
    many, which ``is_causal`` tells faster."""
    if queries == keys:
        return None
    from torch.nn.attention.bias import causal_lower_right  # imports Triton, if it is there

    return causal_lower_right(queries, keys)


def _leaves(state: State, op: Op) -> tuple[torch.Tensor, ...]:
    """Return what attention's derivative is taken of: queries, keys and values; where slices are
    positions of sequences, keys and values of this slice and all before it."""
    own, normed = state.read(op, 0).detach(), state.shapes.model.qk_norm
    if not state.shapes.plan.slices_sequences:
        if normed:
            return _normed_heads(state, op, 0, 1)
        return tuple(leaf.detach().requires_grad_() for leaf in _heads(state, op, own))
    if normed:
        query, *mine = _normed_heads(state, op, 0, 1)
        slices = [_normed_heads(state, op._replace(slice=i), 3 + 2 * i, 2 + 2 * i)[1:]
                  for i in range(op.slice)]  # fmt: skip
        keys, values = (torch.cat(parts, dim=2) for parts in zip(*slices, mine, strict=True))
        return tuple(leaf.detach().requires_grad_() for leaf in (query, keys, values))
    query, *mine = _heads(state, op, own)
    if state.shapes.rows[op.slice] == 1:  # all slices' rows follow each other in memory
        whole = own.as_strided((state.positions(op).stop, own.shape[1]), own.stride(), 0)
        _, keys, values = _heads(state, op, whole)
    else:
        slices = [_heads(state, op._replace(slice=i), state.values[op.reads[1 + i]])[1:]
                  for i in range(op.slice)]  # fmt: skip
        keys, values = (torch.cat(parts, dim=2) for parts in zip(*slices, mine, strict=True))
    # Not detached: later slices' rows are written after these were read.
    return tuple(leaf.data.requires_grad_() for leaf in (query, keys, values))


def _normed_heads(state: State, op: Op, qk: int, qkv: int) -> tuple[torch.Tensor, ...]:
    """Return q and k of the op's read number ``qk``, and v of number ``qkv``, as leaves."""
    normed, packed = state.read(op, qk).detach(), state.read(op, qkv).detach()
    width = (state.shapes.heads + state.shapes.kv_heads) * state.shapes.model.head_dim
    query, key, value = _heads(state, op, torch.cat((normed, packed[:, width:]), dim=1))
    return tuple(leaf.detach().requires_grad_() for leaf in (query, key, value))


def core_attn_bwd(state: State, op: Op) -> None:
    """Write the gradient of packed q, k, v, and that of earlier slices' keys and values, packed.
    Reads the output's gradient, what attention read, and the output."""
    leaves, result = state.saved.pop(op.reads[-1])
    gradients = torch.autograd.grad(result, leaves, state.read(op, 0))
    start = state.positions(op).start
    query, key, value = (gradient.transpose(1, 2).flatten(2) for gradient in gradients)
    parts = query, key[:, start:], value[:, start:]
    own = state.room(op, state.read(op, 0), sum(part.shape[2] for part in parts))
    torch.cat(parts, dim=2, out=own.view(*query.shape[:2], -1))
    state.write(op, own)
    if start:
        state.write(op, torch.cat((key[:, :start], value[:, :start]), dim=2), 1)


def kv_bwd(state: State, op: Op) -> None:
    """Add the gradients of earlier keys and values to their sum; add to this slice's own what later
    slices gave. The sum is [sequences, positions, keys and values], fp32 (fp64 in fp64)."""
    own, span = state.read(op, 0), state.positions(op)
    totals, given = _gradients(state, op, "attn.kv_grad"), _gradients(state, op, "attn.kv")
    if totals:
        later, width = totals[0], totals[0].shape[2]
        part = own.view(len(later), -1, own.shape[1])[:, :, -width:]
        part.copy_(wide(part) + later[:, span])
    state.write(op, own)
    if given and totals:
        state.write(op, totals[0][:, : span.start].add_(given[0]), 1)
    elif given:
        state.write(op, wide(given[0]), 1)


def _gradients(state: State, op: Op, what: str) -> list[torch.Tensor]:
    """Return the gradients of a value of any slice that the op reads."""
    names = {op.called(Ref(what, row).grad) for row in range(state.shapes.plan.row_slices)}
    return [state.values[name] for name in op.reads if name in names]


def _heads(
    state: State, op: Op, packed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v as views, [batch, heads, positions, head_dim]."""
    model, shapes = state.shapes.model, state.shapes
    sizes = (shapes.heads, shapes.kv_heads, shapes.kv_heads)
    parts = torch.split(packed, [size * model.head_dim for size in sizes], dim=1)
    query, key, value = (
        part.view(shapes.rows[op.slice], -1, size, model.head_dim).transpose(1, 2)
        for part, size in zip(parts, sizes, strict=True)
    )
    return query, key, value


def qk_norm(state: State, op: Op) -> None:
    """Write each head's normalised queries and keys (RMSNorm); save the statistics."""
    packed, model = state.read(op, 0), state.shapes.model
    written, saved = [], []
    for part, weight in zip(_qk(state, packed), state.weight(op.reads[-1]), strict=True):
        y, rstd = state.pointwise.rms_norm(part, weight, model.norm_eps)
        written.append(y.view(len(packed), -1))
        saved.append(rstd)
    state.save(op, tuple(saved))
    state.write(op, torch.cat(written, dim=1))


def qk_norm_bwd(state: State, op: Op) -> None:
    """Turn the gradients of normalised queries and keys into those of their inputs, in place; add
    to the weights' gradients. Reads packed gradients, and packed q, k and v."""
    packed, inputs, name = state.read(op, 0), state.read(op, 1), op.reads[-1]
    normed = Ref("attn.qk", op.slice)
    again = op.called(normed.again)
    saved = state.saved.pop(again if again in state.saved else op.called(normed))
    weights, sums = state.weight(name), state.parameters.grads[name]
    parts = zip(_qk(state, packed), _qk(state, inputs), weights, sums, saved, strict=True)
    start = 0
    for dy, x, weight, total, rstd in parts:
        dx, dweight = state.pointwise.rms_norm_grad(dy, x, weight, rstd, None)
        total.add_(dweight)
        end = start + dx.numel() // len(packed)
        packed[:, start:end] = dx.view(len(packed), -1)
        start = end
    state.write(op, packed)


def _qk(state: State, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys, each [tokens · heads, head_dim], as copies."""
    size, shapes = state.shapes.model.head_dim, state.shapes
    queries, end = shapes.heads * size, (shapes.heads + shapes.kv_heads) * size
    query, key = packed[:, :queries], packed[:, queries:end]
    return query.reshape(-1, size), key.reshape(-1, size)


def rope(state: State, op: Op) -> None:
    """Rotate queries and keys in place by their positions."""
    packed = state.read(op, 0)
    _rotate(state, op, packed, 1.0)
    state.write(op, packed)


def rope_bwd(state: State, op: Op) -> None:
    """Rotate the gradients of queries and keys back, in place."""
    packed = state.read(op, 0)
    _rotate(state, op, packed, -1.0)
    state.write(op, packed)


def _rotate(state: State, op: Op, packed: torch.Tensor, sign: float) -> None:
    span, heads = state.positions(op), state.shapes.heads + state.shapes.kv_heads
    cosine, sine = (table[span] for table in rope_tables(state, packed))
    state.pointwise.rotate(packed, heads, cosine, sine, sign)


def rope_tables(state: State, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, [seq, 1, head_dim / 2], computed once per state."""
    found = state.saved.get("rope")
    if found is None:
        speeds = rotary_speeds(state.shapes.model).to(like.device)
        positions = torch.arange(state.shapes.workload.seq_length, device=like.device)
        angles = (positions.to(torch.float64)[:, None] * speeds)[:, None, :]
        found = state.saved["rope"] = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
    tables: tuple[torch.Tensor, torch.Tensor] = found
    return tables
