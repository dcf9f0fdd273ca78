"""Shapes from config.json files; the expected ones are the models' published sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.store.formats.hf_config import SCALING, from_hf_config
from domino_tune.store.formats.hf_families import FAMILIES
from simulator.errors import InputError
from simulator.presets import MODELS

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
PHI3: dict[str, Any] = {
    "model_type": "phi3", "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "rope_scaling": None,
    "sliding_window": 2047, "tie_word_embeddings": False, "vocab_size": 32064,
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


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({**QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
          "num_hidden_layers": 28, "tie_word_embeddings": True}, 596_049_920),
        (QWEN3, 8_190_735_360),
        ({**GEMMA2, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
          "num_hidden_layers": 26, "num_key_value_heads": 4}, 2_614_341_888),
        (GEMMA2, 9_241_705_984),
        ({**GEMMA2, "hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32,
          "num_hidden_layers": 46, "num_key_value_heads": 16, "head_dim": 128}, 27_227_128_320),
        (PHI3, 3_821_079_552),
        ({**PHI3, "hidden_size": 5120, "intermediate_size": 17920, "num_attention_heads": 40,
          "num_hidden_layers": 40, "num_key_value_heads": 10}, 13_960_238_080),
    ],
    ids=["qwen3-0.6b", "qwen3-8b", "gemma2-2b", "gemma2-9b", "gemma2-27b", "phi3-mini",
         "phi3-medium"],
)  # fmt: skip
def test_parameters_are_those_of_transformers(config: dict[str, Any], parameters: int) -> None:
    """Counted on the models that transformers 5.23 makes of these configs, on the meta device."""
    assert shape(config).parameters == parameters


NAMED: Final = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({"model_type": "llama", **NAMED, "num_key_value_heads": 8}, 6_721_638_400),
        ({"model_type": "phi3", **NAMED, "num_key_value_heads": 8}, 5_614_342_144),
        ({"model_type": "qwen2", **NAMED, "num_key_value_heads": 8}, 11_050_356_736),
        ({"model_type": "qwen3", **NAMED}, 11_855_474_688),
        ({"model_type": "mistral", **NAMED}, 8_030_261_248),
        ({"model_type": "mixtral", **NAMED}, 47_491_321_856),
        ({"model_type": "gemma2", **NAMED}, 6_565_662_720),
        ({"model_type": "gpt_neox", **NAMED}, 9_642_582_016),
        ({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}},
         6_738_939_904),
    ],
)  # fmt: skip
def test_what_a_config_leaves_out_is_as_transformers_has_it(
    config: dict[str, Any], parameters: int
) -> None:
    """Counted in the same way. A nested config leaves out all that its class has anyway; a whole
    one has to name its sizes but for two."""
    found = from_hf_config(config, name="it")
    assert found.spec.parameters == parameters
    assert any("as transformers has where a config says nothing" in one for one in found.notes)


def test_a_size_that_was_left_out_is_named_where_it_does_not_fit() -> None:
    config = {"model_type": "qwen2", **NAMED, "num_attention_heads": 16}
    with pytest.raises(InputError, match=r"num_key_value_heads = 32, .* what transformers has"):
        shape(config)


def test_no_heads_of_keys_is_as_many_as_of_queries() -> None:
    spec = shape({"model_type": "mistral", **NAMED, "num_key_value_heads": None})
    assert spec.num_key_value_heads == 32


def test_what_is_no_causal_language_model_is_told() -> None:
    for ends, is_told in (
        ("LlamaForSequenceClassification", True), ("MistralModel", True),
        ("LlamaForCausalLM", False), ("GPT2LMHeadModel", False),
    ):  # fmt: skip
        found = from_hf_config({**LLAMA, "architectures": [ends]}, name="it")
        assert any("head over the vocabulary" in one for one in found.notes) == is_told


def test_embeddings_that_the_model_around_ties_otherwise_are_told() -> None:
    text = {**LLAMA, "tie_word_embeddings": False}
    for outer in (True, False):
        config = {"model_type": "llava", "text_config": text, "tie_word_embeddings": outer}
        notes = from_hf_config(config, name="it").notes
        assert any("the model around it says True" in one for one in notes) == outer


def test_qwen3_is_the_preset() -> None:
    model = from_hf_config(QWEN3, name="qwen3-8b")
    assert model.spec == MODELS["qwen3-8b"]
    assert (model.notes, model.ignored) == ((), ("architectures", "rope_scaling"))


def test_gemma2_has_its_norms_caps_and_factor() -> None:
    found = from_hf_config(GEMMA2, name="it")
    model = found.spec
    assert model.extras == (
        "post_norm", "scaled_embeddings", "attn_logit_softcapping", "final_logit_softcapping",
    )  # fmt: skip
    assert (model.hidden_act, model.gated_mlp, model.norm) == ("gelu", True, "rmsnorm")
    assert (model.head_dim, model.tie_word_embeddings, model.sliding_window) == (256, True, 4096)
    (note,) = found.notes
    assert "priced as it is without attn_logit_softcapping = 50, and counts as assumed" in note
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert shape({**GEMMA2, **caps}).extras == ("post_norm", "scaled_embeddings")
    absent = {key: value for key, value in GEMMA2.items() if key not in caps}
    assert shape(absent) == model
    assert shape({**GEMMA2, "model_type": "gemma"}).post_norm is False


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "llama", "sliding_window": 4096}, 0),
        ({"model_type": "phi3", "sliding_window": 2047}, 2047),
        ({"model_type": "phi3", "sliding_window": 262144}, 262144),
        ({"model_type": "phi3"}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True,
          "max_window_layers": 80}, 0),
        ({"model_type": "qwen3", "sliding_window": 4096, "use_sliding_window": True,
          "layer_types": ["full_attention"] * 80}, 0),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"] * 40,
          "sliding_window": 1024}, 1024),
    ],
)  # fmt: skip
def test_sliding_windows(change: dict[str, Any], window: int) -> None:
    assert shape({**LLAMA, **change}).sliding_window == window


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
        {"type": "su", "short_factor": [1.0], "long_factor": [2.0]},
    ],
)  # fmt: skip
def test_rope_scaling_changes_no_op(scaling: dict[str, Any]) -> None:
    config = {**LLAMA, "rope_scaling": scaling, "max_position_embeddings": 131072}
    plain = shape({**LLAMA, "max_position_embeddings": 131072})
    same = {name: getattr(plain, name) for name in SCALING.values()}
    assert replace(shape(config), **same) == plain


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_angles_of_llama_3_1(key: str) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
    }  # fmt: skip
    found = from_hf_config({**LLAMA, key: scaling}, name="it")
    assert found.notes == ()
    assert [getattr(found.spec, name) for name in SCALING.values()] == [32.0, 1.0, 4.0, 8192]
    assert found.spec.rope_theta == 500000.0


def test_angles_that_real_ranks_do_not_scale_are_told() -> None:
    found = from_hf_config({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}, name="it")
    assert found.spec == from_hf_config(LLAMA, name="it").spec
    assert ["'yarn'" in note for note in found.notes] == [True]


def test_qwen2_has_a_bias_of_qkv_alone() -> None:
    """Qwen/Qwen2-0.5B has 494,032,768 parameters (its model card on huggingface.co)."""
    config = {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 131072,
    }  # fmt: skip
    model = shape(config)
    assert [model.has_bias(name) for name in ("qkv", "proj", "fc1", "fc2")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert model.parameters == 494_032_768


def test_rope_parameters_of_transformers_5() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    nested = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert from_hf_config(nested, name="it") == from_hf_config(LLAMA, name="it")


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"torch_dtype": "float8_e4m3fn"}, r"torch_dtype = 'float8_e4m3fn'"),
        ({"dtype": "float8_e5m2"}, r"dtype = 'float8_e5m2'"),
        ({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
         r"quantization_config = .*'fp8'"),
        ({"quantization_config": {"quant_method": "compressed-tensors",
                                  "format": "float-quantized"}}, "quantization_config"),
    ],
)  # fmt: skip
def test_weights_stored_in_fp8_are_told(change: dict[str, Any], got: str) -> None:
    found = from_hf_config({**LLAMA, **change}, name="it")
    assert found.spec == shape(LLAMA)
    assert re.search(rf"^it: {got}.* is how weights are stored; .*--fp8-recipe", found.notes[0])


def test_departures_are_said() -> None:
    config = {**LLAMA, "model_type": "gpt_neox", "use_parallel_residual": True}
    assert "use_parallel_residual = True" in from_hf_config(config, name="it").notes[0]
    assert from_hf_config({**config, "use_parallel_residual": False}, name="it").notes == ()


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


@pytest.mark.parametrize(
    ("outer", "key", "inner", "told"),
    [
        ("qwen3_vl", "text_config", "qwen3_vl_text", "qwen3"),
        ("qwen2_5_vl", "text_config", "qwen2_5_vl_text", "qwen2"),
        ("llava", "text_config", "llama", "llama"),
        ("internvl_chat", "llm_config", "qwen2", "qwen2"),
        ("paligemma", "text_config", "gemma2", "gemma2"),
    ],
)
def test_the_language_model_of_a_multimodal_one_is_read(
    outer: str, key: str, inner: str, told: str
) -> None:
    """What it leaves out of its embeddings, the model around it says."""
    text = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    nested = {"model_type": outer, "vision_config": {}, key: {**text, "model_type": inner}}
    found = from_hf_config({**nested, "tie_word_embeddings": True}, name="it")
    alone = from_hf_config({**text, "model_type": told, "tie_word_embeddings": True}, name="it")
    assert found.spec == alone.spec
    assert found.notes[0].startswith(f"it: the language model alone is simulated, as {told}")


def test_the_language_model_beside_a_vision_model_at_the_top_is_read() -> None:
    top = from_hf_config({**LLAMA, "model_type": "qwen2_vl", "vision_config": {}}, name="it")
    assert top.spec == from_hf_config({**LLAMA, "model_type": "qwen2"}, name="it").spec


def test_a_nested_language_model_that_is_not_read_is_named() -> None:
    with pytest.raises(InputError, match=r"'gemma3_text' is not read.*ModelSpec as JSON"):
        shape({"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text"}})
    with pytest.raises(InputError, match=r"mixture of experts.*\(This is of its text_config\.\)"):
        shape({"model_type": "x", "text_config": {**LLAMA, "model_type": "ernie4_5_moe_text"}})


@pytest.mark.parametrize("model_type", ["dbrx", "qwen2_moe", "olmoe"])
def test_other_mixtures_of_experts_are_named(model_type: str) -> None:
    message = rf"experts is not read \(got model_type = '{model_type}'.*mixtral, qwen3_moe.*own"
    with pytest.raises(InputError, match=message):
        shape({**LLAMA, "model_type": model_type})


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_of_a_dense_family_are_named(key: str) -> None:
    with pytest.raises(InputError, match=rf"mixture of experts .*got {key} = 8"):
        shape({**LLAMA, key: 8})


def test_projected_embeddings_are_refused() -> None:
    opt = {
        "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 1024,
    }  # fmt: skip
    assert shape(opt).hidden_size == 1024
    with pytest.raises(InputError, match="word_embed_proj_dim = 512 differs"):
        shape({**opt, "word_embed_proj_dim": 512})
