"""config.json files of mixtures of experts, as their makers print them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.formats.hf_config import from_hf_config
from domino_tune.store.shelf import load_model, override
from simulator.errors import InputError
from simulator.presets import MODELS

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
V2: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "ep_size": 1,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v2", "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": False,
    "num_attention_heads": 128, "num_experts_per_tok": 6, "num_hidden_layers": 60,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 16.0, "tie_word_embeddings": False,
    "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
V3: dict[str, Any] = {
    **V2, "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3,
    "hidden_size": 7168, "intermediate_size": 18432, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "vocab_size": 129280,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "num_local_experts": 128, "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "rope_type": "yarn"},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
    "text_config": {
        "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10485760, "model_type": "llama4_text",
        "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "use_qk_norm": True, "vocab_size": 202048,
    },
    "tie_word_embeddings": False, "vision_config": {},
}  # fmt: skip


def read(config: dict[str, Any]) -> Any:
    return from_hf_config(config, name="it")


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (MIXTRAL, "mixtral-8x7b"), (QWEN3, "qwen3-30b-a3b"), (V2, "deepseek-v2"),
        (V3, "deepseek-v3"), (GPT_OSS, "gpt-oss-120b"), (SCOUT, "llama4-scout"),
    ],
)  # fmt: skip
def test_published_configs_are_the_presets(config: dict[str, Any], preset: str) -> None:
    assert from_hf_config(config, name=preset).spec == MODELS[preset]


def test_queries_without_a_latent_vector_as_in_v2_lite() -> None:
    lite = {
        **V2, "q_lora_rank": None, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27,
    }  # fmt: skip
    spec = read(lite).spec
    assert (spec.q_lora_rank, spec.head_dim) == (0, 192)
    assert spec.shared_expert_intermediate_size == 2 * 1408
    assert spec.parameters / 1e9 == pytest.approx(15.7, abs=0.05)
    assert read({**V3, "n_shared_experts": None}).spec.shared_expert_intermediate_size == 0
    assert read({**V3, "num_nextn_predict_layers": None}).spec.num_nextn_predict_layers == 0


def test_a_multimodal_qwen_is_read_as_its_language_model() -> None:
    nested = {
        "model_type": "qwen3_vl_moe",
        "text_config": {**QWEN3, "model_type": "qwen3_vl_moe_text"},
    }
    assert read(nested).spec == read(QWEN3).spec


def test_what_is_left_out_is_told() -> None:
    assert "every second layer attends to a window" in read(GPT_OSS).notes[0]
    assert load_model("gpt-oss-20b").notes[0].startswith("gpt-oss-20b: every second layer")
    assert "chunks of attention_chunk_size tokens" in read(SCOUT).notes[1]
    assert read(V3).notes[0].startswith("it: quantization_config = ")
    assert read(MIXTRAL).notes == ()
    assert {"norm_topk_prob", "router_aux_loss_coef"} <= set(read(QWEN3).ignored)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (QWEN3, {"decoder_sparse_step": 2}, r"step = 2 means that only every nth layer has"),
        (QWEN3, {"mlp_only_layers": [0, 5]}, r"mlp_only_layers = \[0, 5\] means that these layers"),
        (V3, {"moe_layer_freq": 2}, "only moe_layer_freq = 1 is"),
        (V3, {"use_mla": False}, "use_mla = False means that attention is not latent"),
        (SCOUT["text_config"], {"moe_layers": [1, 3]}, "means that only 2 of [0-9]+ layers have"),
        (SCOUT["text_config"], {"interleave_moe_layer_step": 2}, "only every nth layer"),
        (V3, {"attention_bias": True}, "without attention_bias"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "above num_experts = 8"),
        (V3, {"qk_nope_head_dim": "128"}, "qk_nope_head_dim: must be a valid integer, got '128'"),
    ],
)
def test_layers_that_are_not_simulated_are_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read({**config, **changes})


def test_fields_of_experts_are_set_by_their_names() -> None:
    mixtral = MODELS["mixtral-8x7b"]
    changed = override(mixtral, ["num_local_experts=16", "moe_intermediate_size=7168"])
    want = replace(mixtral, num_experts=16, moe_intermediate_size=7168)
    assert replace(changed, name=want.name) == want
    experts = ["num_experts=8", "num_experts_per_tok=2", "moe_intermediate_size=14336"]
    assert override(MODELS["llama3-8b"], experts).expert_layers == 32
