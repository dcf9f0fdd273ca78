"""Flat buffers of parameters: sizes, cuts, ranges."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from domino_tune.runtime.parameters import (
    EDGES,
    Parameters,
    cut_shard,
    full_tensor,
    parameter_specs,
)
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.shapes import Shapes
from simulator.sharding import padded_vocab_size
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA
from tests.real.domino_tune.runtime.models import random_model

CPU = torch.device("cpu")


def _shapes(model: ModelSpec, tp: int) -> Shapes:
    workload = Workload(seq_length=1, micro_batch_size=1)
    return Shapes(model=model, workload=workload, cluster=ClusterSpec(tp=tp), plan=MEGATRON)


def _parameters(model: ModelSpec, tp: int, rank: int, seed: int = 0) -> Parameters:
    return Parameters(model, ClusterSpec(tp=tp), rank, dtype=torch.float64, device=CPU, seed=seed)


@pytest.mark.parametrize("seed", range(30))
def test_the_simulators_count_is_the_buffers_size(seed: int) -> None:
    rng = random.Random(seed)
    tp = rng.choice((1, 2, 4))
    model = random_model(rng, tp)
    shapes, parameters = _shapes(model, tp), _parameters(model, tp, rng.randrange(tp))
    assert parameters.grad.numel() == parameters.main.numel() == shapes.held.whole
    assert parameters.gradient_range(EDGES, EDGES).numel() == shapes.edge_parameters
    for layer in range(model.num_hidden_layers):
        assert parameters.gradient_range(layer, layer).numel() == shapes.layer_parameters


@pytest.mark.parametrize(
    "name", sorted(n for n, m in MODELS.items() if not (m.extras or m.num_experts))
)
def test_the_presets_count_is_the_sum_of_their_shards(name: str) -> None:
    model = replace(MODELS[name], num_hidden_layers=2)
    for tp in (1, 8):
        cluster = ClusterSpec(tp=tp)
        specs = parameter_specs(model, cluster)
        assert sum(math.prod(s.local_shape(tp)) for s in specs) == _shapes(model, tp).held.whole
        tables = 1 if model.tie_word_embeddings else 2
        padding = padded_vocab_size(model, cluster) - model.vocab_size
        whole = model.parameters + tables * padding * model.hidden_size
        assert sum(math.prod(s.shape) for s in specs) == whole


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda m: m.name)
def test_shards_are_different_cuts_of_one_matrix(model: ModelSpec) -> None:
    vocab = model.vocab_size
    ranks = [_parameters(model, 2, rank, seed=3) for rank in range(2)]
    whole = _parameters(model, 1, 0, seed=3)
    for spec in parameter_specs(model, ClusterSpec(tp=1)):
        shards = [rank.weights[spec.name] for rank in ranks]
        assert (spec.cut == "none") == torch.equal(shards[0], shards[1])
        for rank, shard in enumerate(shards):
            if spec.name in ("w.embed", "w.head.logits"):
                # 150 tokens are padded to 256 on one rank and on two.
                assert torch.equal(shard, whole.weights[spec.name][rank * 128 :][:128])
                continue
            full = full_tensor(spec, 3, vocab)
            assert torch.equal(whole.weights[spec.name], full)
            assert torch.equal(shard, cut_shard(full, spec, 2, rank))
    assert not whole.weights["w.embed"][vocab:].any()


def test_another_seed_is_another_model() -> None:
    one, other = (_parameters(GPT, 1, 0, seed=seed) for seed in (1, 2))
    assert not torch.equal(one.weights["l0.w.attn.qkv"], other.weights["l0.w.attn.qkv"])
    assert not torch.equal(one.weights["l0.w.attn.qkv"], one.weights["l1.w.attn.qkv"])


def test_weights_and_gradients_are_views_that_do_not_overlap() -> None:
    parameters = _parameters(GPT, 2, 0)
    parameters.grad.zero_()
    for number, gradient in enumerate(parameters.grads.values()):
        gradient.add_(number + 1)
    for number, gradient in enumerate(parameters.grads.values()):
        assert (gradient == number + 1).all()
    assert (parameters.grad != 0).all()


def test_half_precision_keeps_fp32_main_parameters() -> None:
    parameters = Parameters(GPT, ClusterSpec(tp=1), 0, dtype=torch.bfloat16, device=CPU)
    assert parameters.main.dtype == parameters.grad.dtype == torch.float32
    weight = parameters.weights["l0.w.mlp.fc2"]
    assert weight.dtype == torch.bfloat16
    assert torch.equal(parameters.model_copy, parameters.main.bfloat16())


def test_the_norm_counts_replicated_parameters_once() -> None:
    ranks = [_parameters(GPT, 2, rank) for rank in range(2)]
    for rank in ranks:
        rank.grad.copy_(rank.main)
    whole = _parameters(GPT, 1, 0)
    expected = whole.main.square().sum()
    got = sum(float(rank.squared_norm()) for rank in ranks)
    assert got == pytest.approx(float(expected), rel=1e-12)


def test_a_watchdog_hears_of_every_parameter() -> None:
    beats: list[None] = []
    parameters = Parameters(
        GPT, ClusterSpec(tp=2), 0, dtype=torch.float32, device=CPU,
        beat=lambda: beats.append(None),
    )  # fmt: skip
    assert len(beats) == len(parameters.specs)
