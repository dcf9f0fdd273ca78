from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from simulator.presets import MODELS
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, ModelSpec, Workload

BILLIONS = {
    "gpt3-1.3b": 1.3, "gpt3-2.7b": 2.7, "gpt3-6.7b": 6.7, "gpt3-13b": 12.9, "gpt3-30b": 30.0,
    "gpt3-175b": 174.6, "llama2-7b": 6.7, "llama2-13b": 13.0, "llama2-70b": 69.0,
    "llama3-8b": 8.0, "llama3-70b": 70.6, "llama3-405b": 405.9, "qwen3-8b": 8.2,
    "qwen3-14b": 14.8, "qwen3-32b": 32.8, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235.1,
    "mixtral-8x7b": 46.7, "deepseek-v2": 235.7, "deepseek-v3": 671.0, "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8, "llama4-scout": 107.8,
}  # fmt: skip
ACTIVE = {
    "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22.2, "mixtral-8x7b": 12.9, "deepseek-v2": 21.4,
    "deepseek-v3": 37.6, "llama4-scout": 17.2,
}  # fmt: skip
"""Billions of parameters that a token meets."""


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
    "qwen3-30b-a3b": Published(48, 2048, 32, 4, 128, 6144, 151936, 40960),
    "qwen3-235b-a22b": Published(94, 4096, 64, 4, 128, 12288, 151936, 40960),
    "mixtral-8x7b": Published(32, 4096, 32, 8, 128, 14336, 32000, 32768),
    "deepseek-v2": Published(60, 5120, 128, 128, 192, 12288, 102400, 163840),
    "deepseek-v3": Published(61, 7168, 128, 128, 192, 18432, 129280, 163840),
    "gpt-oss-20b": Published(24, 2880, 64, 8, 64, 2880, 201088, 131072),
    "gpt-oss-120b": Published(36, 2880, 64, 8, 64, 2880, 201088, 131072),
    "llama4-scout": Published(48, 5120, 40, 8, 128, 16384, 202048, 10485760),
}
EXPERTS = {
    "qwen3-30b-a3b": (128, 8, 768, 0, 0), "qwen3-235b-a22b": (128, 8, 1536, 0, 0),
    "mixtral-8x7b": (8, 2, 14336, 0, 0), "deepseek-v2": (160, 6, 1536, 3072, 1),
    "deepseek-v3": (256, 8, 2048, 2048, 3), "gpt-oss-20b": (32, 4, 2880, 0, 0),
    "gpt-oss-120b": (128, 4, 2880, 0, 0), "llama4-scout": (16, 1, 8192, 8192, 0),
}  # fmt: skip
"""Experts, those of a token, their width, the shared one's, and first dense layers."""


def test_shapes_are_the_published_ones() -> None:
    assert {
        name: Published(
            m.num_hidden_layers, m.hidden_size, m.num_attention_heads, m.num_key_value_heads,
            m.head_dim, m.intermediate_size, m.vocab_size, m.max_position_embeddings,
        )
        for name, m in MODELS.items()
    } == PUBLISHED  # fmt: skip


def test_experts_are_the_published_ones() -> None:
    assert {
        name: (
            m.num_experts, m.num_experts_per_tok, m.moe_intermediate_size,
            m.shared_expert_intermediate_size, m.first_k_dense_replace,
        )
        for name, m in MODELS.items() if m.num_experts
    } == EXPERTS  # fmt: skip
    assert {name for name, m in MODELS.items() if m.kv_lora_rank} == {"deepseek-v2", "deepseek-v3"}
    assert MODELS["deepseek-v3"].num_nextn_predict_layers == 1
    assert MODELS["llama4-scout"].sliding_window == 8192


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
        "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "llama4-scout",
    }  # fmt: skip


def active_parameters(model: ModelSpec) -> int:
    """Parameters that a token meets: of a layer's experts, its own."""
    asleep = model.num_experts - model.num_experts_per_tok
    layers = model.expert_layers + model.num_nextn_predict_layers * model.predicts_with_experts
    return model.parameters - layers * asleep * model.expert_parameters


def test_parameter_counts_are_the_published_ones() -> None:
    """Those of DeepSeek-V3 are printed without its layer of further prediction."""
    plain = {name: replace(model, num_nextn_predict_layers=0) for name, model in MODELS.items()}
    counts = {name: round(model.parameters / 1e9, 1) for name, model in plain.items()}
    assert counts == pytest.approx(BILLIONS, abs=0.11)
    active = {name: round(active_parameters(plain[name]) / 1e9, 1) for name in ACTIVE}
    assert active == pytest.approx(ACTIVE, abs=0.11)


def test_a_layer_of_further_prediction_shares_embedding_and_head() -> None:
    """The 14 B of DeepSeek-V3's checkpoint have both again."""
    model = MODELS["deepseek-v3"]
    alone = model.parameters - replace(model, num_nextn_predict_layers=0).parameters
    assert alone == model.mtp_layer_parameters
    assert (alone + 2 * 129280 * 7168) / 1e9 == pytest.approx(13.5, abs=0.1)


def test_published_counts_of_gpt_oss_meet_no_embedding() -> None:
    for name, published in (("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)):
        model = MODELS[name]
        met = active_parameters(model) - model.vocab_size * model.hidden_size
        assert met / 1e9 == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_shards_over_a_node(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    heads_of_their_own_size = {
        "qwen3-32b": 8192, "qwen3-30b-a3b": 4096, "qwen3-235b-a22b": 8192, "deepseek-v2": 16384,
        "deepseek-v3": 16384, "gpt-oss-20b": 4096, "gpt-oss-120b": 4096,
    }  # fmt: skip
    assert model.attention_size == heads_of_their_own_size.get(name, model.hidden_size)
    check_shardable(model, Workload(seq_length=1024, micro_batch_size=1), ClusterSpec(tp=8))
