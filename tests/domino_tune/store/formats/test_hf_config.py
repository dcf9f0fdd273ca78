"""Shapes from config.json files; the expected ones are the models' published sizes."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.store.formats.hf_config import FAMILIES, from_hf_config
from simulator.errors import InputError
from simulator.presets import MODELS

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000,
}  # fmt: skip


def shape(config: dict[str, Any]) -> Any:
    return from_hf_config(config, name="it").spec


def test_llama_is_the_preset() -> None:
    model = from_hf_config(LLAMA, name="llama3-70b")
    assert model.spec == MODELS["llama3-70b"]
    assert model.ignored == ("architectures", "bos_token_id", "torch_dtype")
    assert model.notes == ()


def test_gpt2() -> None:
    config = {
        "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024,
        "n_inner": None, "vocab_size": 50257, "activation_function": "gelu_new",
        "resid_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "n_ctx": 1024,
    }  # fmt: skip
    found = from_hf_config(config, name="it")
    assert round(found.spec.parameters / 1e6) == 1558  # GPT-2 XL
    assert found.ignored == ("n_ctx",)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (
            {
                "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                "vocab_size": 32000, "sliding_window": 4096,
            },
            7.24,
        ),
        (
            {
                "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
                "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
                "vocab_size": 152064,
            },
            7.62,
        ),
        (
            {
                "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
                "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
                "vocab_size": 151936, "head_dim": 128,
            },
            32.76,
        ),
        (
            {
                "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576,
                "num_hidden_layers": 44, "num_attention_heads": 64, "vocab_size": 50432,
            },
            20.55,
        ),
        (
            {
                "model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384,
                "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 50272,
            },
            6.66,
        ),
        (
            {
                "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
                "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True,
            },
            6.92,
        ),
        (
            {
                "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
                "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
                "head_dim": 256, "vocab_size": 256000,
            },
            8.54,
        ),
    ],
)  # fmt: skip
def test_published_sizes(config: dict[str, Any], billions: float) -> None:
    assert shape(config).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_departures_are_said() -> None:
    config = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert "sliding_window = 4096" in from_hf_config(config, name="it").notes[0]
    assert from_hf_config({**config, "sliding_window": None}, name="it").notes == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_key_is_named(family: str) -> None:
    with pytest.raises(InputError, match="num_hidden_layers or n_layer"):
        shape({"model_type": family, "hidden_size": 512})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "llama"),
        ({"model_type": 3}, "model_type"),
        ({"hidden_act": "mish"}, "mish"),
        ({"hidden_size": "8192"}, "hidden_size: must be a valid integer, got '8192'"),
        ({"num_attention_heads": 0}, "0"),
        ({"num_attention_heads": 63, "num_key_value_heads": 63}, "does not divide"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: must be a valid boolean, got 1"),
        ({"is_encoder_decoder": True}, "decoder-only"),
        ({"num_experts": 8}, "mixture"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shape({**LLAMA, **change})


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "head_dim"])
@pytest.mark.parametrize("value", [10**9 + 1, 10**400])
def test_sizes_above_any_models_are_refused(key: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{key} must be at most 1000000000"):
        shape({**LLAMA, key: value})


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [10**400, 1e308, -(10**400)])
def test_rates_above_any_models_are_refused(key: str, value: float) -> None:
    with pytest.raises(InputError, match=f"(norm_eps|{key}):? must be"):
        shape({**LLAMA, key: value})


@pytest.mark.parametrize("value", [["silu"], {"name": "silu"}, 7])
def test_an_activation_is_a_name(value: object) -> None:
    with pytest.raises(InputError, match="Unknown activation of it"):
        shape({**LLAMA, "hidden_act": value})


def test_a_nested_language_model_is_asked_for_by_itself() -> None:
    with pytest.raises(InputError, match=r"nested under text_config.*pass it"):
        shape({"model_type": "llava", "text_config": LLAMA, "vision_config": {}})


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "deepseek_v3", "olmoe"])
def test_mixtures_of_experts_are_named(model_type: str) -> None:
    with pytest.raises(InputError, match="mixture of experts is not supported"):
        shape({**LLAMA, "model_type": model_type})


def test_projected_embeddings_are_refused() -> None:
    opt = {
        "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 1024,
    }  # fmt: skip
    assert shape(opt).hidden_size == 1024
    with pytest.raises(InputError, match="word_embed_proj_dim = 512 differs"):
        shape({**opt, "word_embed_proj_dim": 512})
