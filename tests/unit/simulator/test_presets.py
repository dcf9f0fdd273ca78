from __future__ import annotations

from typing import NamedTuple

import pytest

from simulator.presets import MODELS
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, Workload

BILLIONS = {
    "gpt3-1.3b": 1.3, "gpt3-2.7b": 2.7, "gpt3-6.7b": 6.7, "gpt3-13b": 12.9, "gpt3-30b": 30.0,
    "gpt3-175b": 174.6, "llama2-7b": 6.7, "llama2-13b": 13.0, "llama2-70b": 69.0,
    "llama3-8b": 8.0, "llama3-70b": 70.6, "llama3-405b": 405.9, "qwen3-8b": 8.2,
    "qwen3-14b": 14.8, "qwen3-32b": 32.8,
}  # fmt: skip


class Published(NamedTuple):
    """The sizes of a model as its paper and its released configuration print them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    positions: int


PUBLISHED = {
    "gpt3-1.3b": Published(24, 2048, 16, 16, 128, 8192, 50257, 2048),
    "gpt3-2.7b": Published(32, 2560, 32, 32, 80, 10240, 50257, 2048),
    "gpt3-6.7b": Published(32, 4096, 32, 32, 128, 16384, 50257, 2048),
    "gpt3-13b": Published(40, 5120, 40, 40, 128, 20480, 50257, 2048),
    "gpt3-30b": Published(48, 7168, 56, 56, 128, 28672, 50257, 2048),
    "gpt3-175b": Published(96, 12288, 96, 96, 128, 49152, 50257, 2048),
    "llama2-7b": Published(32, 4096, 32, 32, 128, 11008, 32000, 4096),
    "llama2-13b": Published(40, 5120, 40, 40, 128, 13824, 32000, 4096),
    "llama2-70b": Published(80, 8192, 64, 8, 128, 28672, 32000, 4096),
    "llama3-8b": Published(32, 4096, 32, 8, 128, 14336, 128256, 8192),
    "llama3-70b": Published(80, 8192, 64, 8, 128, 28672, 128256, 8192),
    "llama3-405b": Published(126, 16384, 128, 8, 128, 53248, 128256, 131072),
    "qwen3-8b": Published(36, 4096, 32, 8, 128, 12288, 151936, 40960),
    "qwen3-14b": Published(40, 5120, 40, 8, 128, 17408, 151936, 40960),
    "qwen3-32b": Published(64, 5120, 64, 8, 128, 25600, 151936, 40960),
}


def test_shapes_are_the_published_ones() -> None:
    assert {
        name: Published(
            m.num_hidden_layers, m.hidden_size, m.num_attention_heads, m.num_key_value_heads,
            m.head_dim, m.intermediate_size, m.vocab_size, m.max_position_embeddings,
        )
        for name, m in MODELS.items()
    } == PUBLISHED  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("gpt3")])
def test_gpt3_has_megatrons_settings(name: str) -> None:
    model = MODELS[name]
    assert (model.hidden_act, model.gated_mlp, model.norm) == ("gelu", False, "layernorm")
    assert (model.position_embedding, model.tie_word_embeddings) == ("learned", True)
    assert (model.attention_bias, model.mlp_bias) == (True, True)
    assert (model.hidden_dropout, model.attention_dropout, model.norm_eps) == (0.1, 0.1, 1e-5)


@pytest.mark.parametrize(("name", "theta"), [("llama2-70b", 10_000.0), ("llama3-8b", 500_000.0)])
def test_llama_has_its_structure(name: str, theta: float) -> None:
    model = MODELS[name]
    assert (model.hidden_act, model.gated_mlp, model.norm) == ("silu", True, "rmsnorm")
    assert (model.position_embedding, model.tie_word_embeddings) == ("rope", False)
    assert (model.attention_bias, model.mlp_bias) == (False, False)
    assert (model.hidden_dropout, model.attention_dropout) == (0.0, 0.0)
    assert (model.rope_theta, model.norm_eps) == (theta, 1e-5)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3-8b", 8_190_735_360), ("qwen3-14b", 14_768_307_200), ("qwen3-32b", 32_762_123_264),
    ],
)  # fmt: skip
def test_qwen3_is_a_llama_with_norms_of_queries_and_keys(name: str, parameters: int) -> None:
    """Counted on transformers' Qwen3ForCausalLM, and as Qwen prints them."""
    model = MODELS[name]
    assert model.parameters == parameters
    assert (model.qk_norm, model.head_dim, model.norm_eps, model.rope_theta) == (
        True, 128, 1e-6, 1e6,
    )  # fmt: skip
    assert (model.attention_bias, model.mlp_bias, model.tie_word_embeddings) == (False,) * 3
    assert {name for name in MODELS if MODELS[name].extras} == {
        "qwen3-8b", "qwen3-14b", "qwen3-32b",
    }  # fmt: skip


def test_parameter_counts_are_the_published_ones() -> None:
    counts = {name: round(model.parameters / 1e9, 1) for name, model in MODELS.items()}
    assert counts == pytest.approx(BILLIONS, abs=0.11)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_shards_over_a_node(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    heads_of_their_own_size = {"qwen3-32b": 8192}
    assert model.attention_size == heads_of_their_own_size.get(name, model.hidden_size)
    check_shardable(model, Workload(seq_length=1024, micro_batch_size=1), ClusterSpec(tp=8))
