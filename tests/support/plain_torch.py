"""The same model in plain torch: autograd, no schedule, no slices; to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from domino_tune.runtime.huggingface.edges import summed_at_once as summed
from domino_tune.runtime.ops.attention import rotary_speeds
from simulator.specs import ModelSpec

Tensor = torch.Tensor


class _ColumnParallel(torch.autograd.Function):
    """x·Wᵀ + b with rows of W on this rank. Backward is f: it sums x's gradient over the ranks
    while W's is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy = gradients[0].flatten(0, -2)
        dx = dy @ weight
        work = dist.all_reduce(dx, group=ctx.group, async_op=True)
        dweight = dy.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        dbias = dy.sum(0) if ctx.has_bias else None
        work.wait()
        return dx.view_as(x), dweight, dbias, None


def column_parallel(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup
) -> Tensor:
    """Return x·Wᵀ + b, [..., this rank's outputs], of an ``x`` that all ranks have."""
    y: Tensor = _ColumnParallel.apply(x, weight, bias, group)  # type: ignore[no-untyped-call]
    return y


# The same model in plain torch --------------------------------------------------------------------
# Autograd, no schedule, no slices.
#
# Without a process group it is the single-process model that the runtime's numbers must equal. With
# one, its layers are Megatron-LM's tensor-parallel ones, the baseline that the runtime's
# ``megatron`` strategy must not be slower than. A row-parallel linear's output is all-reduced at
# once. Backward, a column-parallel linear's input gradient is all-reduced while its weight gradient
# is computed (Megatron's asynchronous all-reduce, its default).


def no_dropout(x: Tensor, site: str) -> Tensor:
    """Return ``x``: evaluation, or a model without dropout."""
    return x


@dataclass(frozen=True, kw_only=True)
class PlainModel:
    """The model. ``weights`` are leaves of autograd under the runtime's names: full matrices, or
    this rank's shards with a ``group``. ``dropout`` is called with a tensor and its site."""

    model: ModelSpec
    weights: Mapping[str, Tensor]
    dropout: Callable[[Tensor, str], Tensor] = no_dropout
    group: dist.ProcessGroup | None = None

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of [sequences, seq_length] tokens; single process only."""
        x = F.embedding(tokens, self.weights["w.embed"])
        if self.model.position_embedding == "learned":
            x = x + self.weights["w.positions"][: tokens.shape[1]]
        x = self.dropout(x.flatten(0, 1), "embed")
        x = self._norm(self.layers(x, tokens.shape[1]), "w.head.norm")
        table = "w.embed" if self.model.tie_word_embeddings else "w.head.logits"
        logits = F.linear(x, self.weights[table][: self.model.vocab_size])
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(wide, targets.flatten())

    def layers(self, x: Tensor, seq_length: int) -> Tensor:
        """Return the output of all layers for [sequences · seq_length, hidden]."""
        for layer in range(self.model.num_hidden_layers):
            for block in ("attn", "mlp"):
                x = self._block(x, f"l{layer}.w.{block}", seq_length, f"l{layer}.{block}")
        return x

    def _block(self, x: Tensor, name: str, seq_length: int, site: str) -> Tensor:
        normed = self._norm(x, f"{name}.norm")
        if name.endswith("attn"):
            row_input = self._attention(self._column(normed, f"{name}.qkv"), seq_length, name)
            last = f"{name}.proj"
        else:
            row_input = self._activation(self._column(normed, f"{name}.fc1"))
            last = f"{name}.fc2"
        y, bias = self._row(row_input, last), self.weights.get(f"{last}.bias")
        return x + self.dropout(y if bias is None else y + bias, site)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        shape, eps = x.shape[-1:], self.model.norm_eps
        if self.model.norm == "layernorm":
            return F.layer_norm(x, shape, self.weights[name], self.weights[f"{name}.bias"], eps)
        return F.rms_norm(x, shape, self.weights[name], eps)

    def _column(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[name], self.weights.get(f"{name}.bias")
        if self.group is None:
            return F.linear(x, weight, bias)
        return column_parallel(x, weight, bias, self.group)

    def _row(self, x: Tensor, name: str) -> Tensor:
        y = F.linear(x, self.weights[name])
        return y if self.group is None else summed(y, self.group)

    def _attention(self, packed: Tensor, seq_length: int, prefix: str) -> Tensor:
        model, tp = self.model, 1 if self.group is None else self.group.size()
        heads, kv_heads = model.num_attention_heads // tp, model.num_key_value_heads // tp
        sizes = (heads, kv_heads, kv_heads)
        parts = torch.split(packed, [size * model.head_dim for size in sizes], dim=1)
        query, key, value = (
            part.view(-1, seq_length, size, model.head_dim).transpose(1, 2)
            for part, size in zip(parts, sizes, strict=True)
        )
        if model.qk_norm:
            weights = self.weights[f"{prefix}.qk_norm"]
            query, key = (
                F.rms_norm(x, x.shape[-1:], weight, model.norm_eps)
                for x, weight in zip((query, key), weights, strict=True)
            )
        if model.position_embedding == "rope":
            query, key = self._rotate(query), self._rotate(key)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=heads != kv_heads
        )
        return mixed.transpose(1, 2).reshape(packed.shape[0], -1)

    def _rotate(self, x: Tensor) -> Tensor:
        """Apply rotary embedding; halves are paired as in Hugging Face's models."""
        cosine, sine = _angles(self.model, x.shape[-2], x.dtype, x.device)
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    def _activation(self, a: Tensor) -> Tensor:
        if self.model.gated_mlp:
            gate, up = a.chunk(2, dim=1)
            return F.silu(gate) * up
        if self.model.hidden_act == "gelu":
            return F.gelu(a, approximate="tanh")
        return F.relu(a) if self.model.hidden_act == "relu" else F.silu(a)


@cache
def _angles(
    model: ModelSpec, seq_length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position's angles, [seq_length, head_dim]."""
    positions = torch.arange(seq_length, dtype=torch.float64, device=device)
    angles = torch.outer(positions, rotary_speeds(model).to(device)).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)
