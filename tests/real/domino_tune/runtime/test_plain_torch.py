"""The plain model against formulas written out: it is what everything else is compared with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from simulator.specs import ModelSpec
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, ODD, Job, batch
from tests.real.domino_tune.runtime.reference import full_weights
from tests.support.plain_torch import PlainModel

Tensor = torch.Tensor


@pytest.mark.parametrize("model", [GPT, LLAMA, ODD], ids=lambda m: m.name)
def test_loss_is_the_written_out_one(model: ModelSpec) -> None:
    job = Job(name="", model=model, sequences=2)
    weights = full_weights(job)
    tokens, targets = batch(job, 0)
    plain = PlainModel(model=model, weights=weights).loss(tokens, targets)
    losses = [_sequence_loss(model, weights, *pair) for pair in zip(tokens, targets, strict=True)]
    assert float(plain) == pytest.approx(math.fsum(losses) / tokens.numel(), rel=1e-13)


def test_rotary_scores_depend_on_distance_alone() -> None:
    rotate = PlainModel(model=LLAMA, weights={})._rotate
    query, key = torch.randn(2, 1, 8, dtype=torch.float64).expand(2, 9, 8)
    scores = rotate(query) @ rotate(key).T
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), rtol=1e-12)


def test_dropout_is_called_at_every_site_once() -> None:
    job = Job(name="", model=replace(GPT, num_hidden_layers=2))
    sites: list[str] = []

    def record(x: Tensor, site: str) -> Tensor:
        sites.append(site)
        return x

    PlainModel(model=job.model, weights=full_weights(job), dropout=record).loss(*batch(job, 0))
    assert sites == ["embed", "l0.attn", "l0.mlp", "l1.attn", "l1.mlp"]


def _sequence_loss(
    model: ModelSpec, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor
) -> float:
    """Sum of one sequence's token losses, row by row and head by head."""
    x = torch.stack([weights["w.embed"][token] for token in tokens])
    if "w.positions" in weights:
        x = x + weights["w.positions"][: len(x)]
    for layer in range(model.num_hidden_layers):
        for block in ("attn", "mlp"):
            name = f"l{layer}.w.{block}"
            first, last = ("qkv", "proj") if block == "attn" else ("fc1", "fc2")
            wide = _linear(weights, f"{name}.{first}", _norm(model, weights, f"{name}.norm", x))
            core = _attention(model, wide) if block == "attn" else _mlp(model, wide)
            x = x + _linear(weights, f"{name}.{last}", core)
    x = _norm(model, weights, "w.head.norm", x)
    logits = x @ weights["w.embed" if model.tie_word_embeddings else "w.head.logits"].T
    logs = logits - logits.exp().sum(1, keepdim=True).log()
    return -math.fsum(float(row[target]) for row, target in zip(logs, targets, strict=True))


def _linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[name].T + weights.get(f"{name}.bias", torch.zeros(()))


def _norm(model: ModelSpec, weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    if model.norm == "rmsnorm":
        return x / ((x**2).mean(1, keepdim=True) + model.norm_eps).sqrt() * weights[name]
    centred = x - x.mean(1, keepdim=True)
    scaled = centred / ((centred**2).mean(1, keepdim=True) + model.norm_eps).sqrt()
    return scaled * weights[name] + weights[f"{name}.bias"]


def _mlp(model: ModelSpec, a: Tensor) -> Tensor:
    if model.gated_mlp:
        gate, up = a[:, : model.intermediate_size], a[:, model.intermediate_size :]
        return gate / (1 + (-gate).exp()) * up
    if model.hidden_act == "relu":
        return a * (a > 0)
    return a / 2 * (1 + (math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)).tanh())


def _attention(model: ModelSpec, a: Tensor) -> Tensor:
    size, heads, kv_heads = model.head_dim, model.num_attention_heads, model.num_key_value_heads
    parts = [_turned(model, part) for part in _heads(a, 0, heads + kv_heads, size)]
    values = _heads(a, heads + kv_heads, kv_heads, size)
    outputs = []
    for head in range(heads):
        shared = head * kv_heads // heads
        scores = parts[head] @ parts[heads + shared].T / math.sqrt(size)
        weights = (scores + torch.full_like(scores, -math.inf).triu(1)).exp()
        outputs.append(weights / weights.sum(1, keepdim=True) @ values[shared])
    return torch.cat(outputs, dim=1)


def _heads(a: Tensor, first: int, count: int, size: int) -> list[Tensor]:
    return [a[:, i * size : (i + 1) * size] for i in range(first, first + count)]


def _turned(model: ModelSpec, part: Tensor) -> Tensor:
    """Pairs (i, i + size / 2) as complex numbers, turned by position · theta^(−2i / size)."""
    if model.position_embedding != "rope":
        return part
    half = model.head_dim // 2
    pairs = torch.complex(part[:, :half], part[:, half:])
    for position in range(len(pairs)):
        for i in range(half):
            angle = torch.tensor(position * model.rope_theta ** (-2 * i / model.head_dim))
            pairs[position, i] *= torch.exp(1j * angle.to(torch.complex128))
    return torch.cat([pairs.real, pairs.imag], dim=1)
