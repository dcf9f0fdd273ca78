"""Attention and rotary embedding on a packed [tokens, (heads + 2·kv_heads)·head_dim] tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from domino_tune.runtime.ops.state import State
from simulator.schedule import Op


def core_attn(state: State, op: Op) -> None:
    """Write causal softmax(QKᵀ)V; save its autograd graph for the backward op."""
    packed = state.read(op, 0).detach().requires_grad_()
    with torch.enable_grad():
        query, key, value = _heads(state, packed)
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        result = mixed.transpose(1, 2).reshape(packed.shape[0], -1)
    state.saved[op.writes[0]] = (packed, result)
    state.write(op, result.detach())


def core_attn_bwd(state: State, op: Op) -> None:
    """Write the gradient of packed q, k, v. Reads the output's gradient, qkv, and the output."""
    packed, result = state.saved.pop(op.reads[2])
    (gradient,) = torch.autograd.grad(result, packed, state.read(op, 0))
    state.write(op, gradient)


def _heads(state: State, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v as views, [batch, heads, seq, head_dim]."""
    model, tp = state.shapes.model, state.shapes.cluster.tp
    seq = state.shapes.workload.seq_length
    batch = packed.shape[0] // seq
    sizes = [model.num_attention_heads // tp] + [model.num_key_value_heads // tp] * 2
    parts = torch.split(packed, [size * model.head_dim for size in sizes], dim=1)
    query, key, value = (
        part.view(batch, seq, size, model.head_dim).transpose(1, 2)
        for part, size in zip(parts, sizes, strict=True)
    )
    return query, key, value


def rope(state: State, op: Op) -> None:
    """Rotate queries and keys in place by their positions."""
    packed = state.read(op, 0)
    _rotate(state, packed, 1.0)
    state.write(op, packed)


def rope_bwd(state: State, op: Op) -> None:
    """Rotate the gradients of queries and keys back, in place."""
    packed = state.read(op, 0)
    _rotate(state, packed, -1.0)
    state.write(op, packed)


def _rotate(state: State, packed: torch.Tensor, sign: float) -> None:
    model, tp = state.shapes.model, state.shapes.cluster.tp
    heads = (model.num_attention_heads + model.num_key_value_heads) // tp
    state.pointwise.rotate(packed, heads, *rope_tables(state, packed), sign)


def rope_tables(state: State, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, [seq, 1, head_dim / 2], computed once per state."""
    found = state.saved.get("rope")
    if found is None:
        model = state.shapes.model
        half = torch.arange(0, model.head_dim, 2, device=like.device, dtype=torch.float64)
        speeds = model.rope_theta ** (-half / model.head_dim)
        positions = torch.arange(state.shapes.workload.seq_length, device=like.device)
        angles = (positions.to(torch.float64)[:, None] * speeds)[:, None, :]
        found = state.saved["rope"] = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
    tables: tuple[torch.Tensor, torch.Tensor] = found
    return tables
