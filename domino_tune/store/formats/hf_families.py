"""Families of Hugging Face's models by ``model_type``, and what their keys mean.

Sources of names and defaults: the configuration classes of transformers 4.5x; of experts, 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.presets import WINDOWS_LEFT_OUT

SAME_TEXT: Final = {
    "qwen2_5": "qwen2", "phi3_v": "phi3", "qwen2_5_omni": "qwen2", "qwen3_vl_moe": "qwen3_moe",
}  # fmt: skip
"""Language models of multimodal models that are another one's."""
OF_TEXT: Final = re.compile(r"(_vl)?(_text)?(_model)?$")
"""How the ``model_type`` of a multimodal model's language model ends, after that of its layers."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The meaning of a ``model_type``: fixed fields, defaults of absent keys, known departures.

    ``sizes``: what its class of transformers has where a config leaves a size out.
    ``departures`` maps a key to (values that are harmless, what is simulated otherwise).
    ``window_switch``: the key without which a sliding window is not used. ``names``: fields -> keys
    that elsewhere mean another, or have another name. ``plain``: keys -> (the values that are read,
    what others mean). ``notes``: what is left out of every model of the family.
    """

    fixed: Mapping[str, Any]
    sizes: Mapping[str, int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    departures: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    window_switch: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def has_experts(self) -> bool:
        """Whether its models are mixtures of experts."""
        return "num_experts" in self.defaults


def _sizes(
    layers: int, hidden: int, heads: int, vocab: int, intermediate: int = 0, kv_heads: int = 0
) -> dict[str, int]:
    """Return sizes by field; 0 leaves a size out, which then follows from the others."""
    found = {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "vocab_size": vocab, "intermediate_size": intermediate, "num_key_value_heads": kv_heads,
    }  # fmt: skip
    return {name: size for name, size in found.items() if size}


_GPT: Final = {"gated_mlp": False, "norm": "layernorm", "sliding_window": 0}
_ROPED: Final = {"gated_mlp": True, "norm": "rmsnorm", "position_embedding": "rope"}
_LLAMA: Final = {**_ROPED, "sliding_window": 0}
_LLAMA_DEFAULTS: Final = {
    "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "max_position_embeddings": 2048, "norm_eps": 1e-6, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "rope_theta": 10000.0,
}  # fmt: skip
_GEMMA: Final = {"mlp_bias": False, "scaled_embeddings": True}
_GEMMA_DEFAULTS: Final = {
    **_LLAMA_DEFAULTS, "hidden_act": "gelu", "tie_word_embeddings": True, "head_dim": 256,
    "max_position_embeddings": 8192,
}  # fmt: skip
_QWEN_DEFAULTS: Final = {
    **_LLAMA_DEFAULTS,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
_LATENT: Final = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128,
}  # fmt: skip
_PLAIN_LATENT: Final = {
    "moe_layer_freq": ((1,), "only every nth layer has experts"),
    "use_mla": ((True, None), "attention is not latent"),
}
FAMILIES: Final[dict[str, Family]] = {
    "gpt2": Family(
        sizes=_sizes(12, 768, 12, 50257),
        fixed={**_GPT, "position_embedding": "learned", "attention_bias": True, "mlp_bias": True},
        plain={"add_cross_attention": ((False, None), "layers attend to an encoder, too")},
        defaults={
            "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
            "tie_word_embeddings": True, "max_position_embeddings": 1024, "norm_eps": 1e-5,
        },
    ),
    "gpt_neox": Family(
        sizes=_sizes(44, 6144, 64, 50432, 24576),
        fixed={**_GPT, "position_embedding": "rope", "mlp_bias": True},
        defaults={
            "hidden_act": "gelu", "tie_word_embeddings": False, "attention_bias": True,
            "max_position_embeddings": 2048, "norm_eps": 1e-5, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "use_parallel_residual": True,
        },
        departures={
            "use_parallel_residual": (
                (False,), "attention and MLP are simulated one after the other"
            )
        },
    ),
    "opt": Family(
        sizes=_sizes(12, 768, 12, 50272, 3072),
        fixed={**_GPT, "position_embedding": "learned"},
        defaults={
            "hidden_act": "relu", "hidden_dropout": 0.1, "attention_dropout": 0.0,
            "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
            "max_position_embeddings": 2048,
        },
        departures={"do_layer_norm_before": ((True,), "norms are simulated before the blocks")},
    ),
    "falcon": Family(
        sizes=_sizes(32, 4544, 71, 65024),
        fixed={**_GPT, "position_embedding": "rope"},
        defaults={
            "hidden_act": "gelu", "tie_word_embeddings": True, "attention_bias": False,
            "mlp_bias": False, "max_position_embeddings": 2048, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "norm_eps": 1e-5, "parallel_attn": True,
        },
        departures={
            "parallel_attn": ((False,), "attention and MLP are simulated one after the other"),
            "alibi": ((False,), "positions are simulated as rotary"),
        },
    ),
    "llama": Family(
        sizes=_sizes(32, 4096, 32, 32000, 11008), fixed=_LLAMA, defaults=_LLAMA_DEFAULTS,
    ),
    "mistral": Family(
        sizes=_sizes(32, 4096, 32, 32000, 14336, 8),
        fixed={**_ROPED, "attention_bias": False, "mlp_bias": False},
        defaults={
            **_LLAMA_DEFAULTS, "max_position_embeddings": 131072, "sliding_window": 4096,
        },
    ),
    "qwen2": Family(
        sizes=_sizes(32, 4096, 32, 151936, 22016, 32),
        fixed={**_ROPED, "attention_bias": True, "proj_bias": False, "mlp_bias": False},
        defaults=_QWEN_DEFAULTS,
        window_switch="use_sliding_window",
    ),
    "qwen3": Family(
        sizes=_sizes(32, 4096, 32, 151936, 22016, 32),
        fixed={**_ROPED, "mlp_bias": False, "qk_norm": True},
        defaults={**_QWEN_DEFAULTS, "head_dim": 128}, window_switch="use_sliding_window",
    ),
    "gemma": Family(
        sizes=_sizes(28, 3072, 16, 256000, 24576, 16), fixed={**_LLAMA, **_GEMMA},
        defaults=_GEMMA_DEFAULTS,
    ),
    "gemma2": Family(
        sizes=_sizes(26, 2304, 8, 256000, 9216, 4),
        fixed={**_ROPED, **_GEMMA, "post_norm": True},
        defaults={
            **_GEMMA_DEFAULTS, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "mixtral": Family(
        sizes=_sizes(32, 4096, 32, 32000, 14336, 8),
        fixed={**_ROPED, "attention_bias": False, "mlp_bias": False},
        defaults={
            **_LLAMA_DEFAULTS, "max_position_embeddings": 131072, "sliding_window": 0,
            "norm_eps": 1e-5, "num_experts": 8, "num_experts_per_tok": 2,
            "rope_theta": 1000000.0,
        },
        names={"moe_intermediate_size": "intermediate_size"},
    ),
    "qwen3_moe": Family(
        sizes=_sizes(24, 2048, 32, 151936, 6144, 4),
        fixed={**_ROPED, "mlp_bias": False, "qk_norm": True},
        defaults={
            **_QWEN_DEFAULTS, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        },
        window_switch="use_sliding_window",
        plain={
            "decoder_sparse_step": ((1,), "only every nth layer has experts"),
            "mlp_only_layers": (([], None), "these layers have no experts"),
        },
    ),
    "deepseek_v2": Family(
        sizes=_sizes(32, 4096, 32, 102400, 11008, 32),
        fixed={**_LLAMA, "mlp_bias": False},
        defaults={
            **_LLAMA_DEFAULTS, **_LATENT, "num_experts": 64,
            "moe_intermediate_size": 1407, "n_shared_experts": 2,
        },
        plain=_PLAIN_LATENT,
    ),
    "deepseek_v3": Family(
        sizes=_sizes(61, 7168, 128, 129280, 18432, 128),
        fixed={**_LLAMA, "mlp_bias": False},
        defaults={
            **_LLAMA_DEFAULTS, **_LATENT, "max_position_embeddings": 4096,
            "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "num_nextn_predict_layers": 1,
        },
        plain=_PLAIN_LATENT,
    ),
    "gpt_oss": Family(
        sizes=_sizes(36, 2880, 64, 201088, 2880, 8),
        fixed={**_LLAMA, "mlp_bias": True},
        defaults={
            **_LLAMA_DEFAULTS, "attention_bias": True, "max_position_embeddings": 131072,
            "norm_eps": 1e-5, "head_dim": 64, "num_experts": 128,
            "num_experts_per_tok": 4, "rope_theta": 150000.0, "swiglu_limit": 7.0,
        },
        names={"moe_intermediate_size": "intermediate_size"},
        notes=(WINDOWS_LEFT_OUT,),
    ),
    "llama4_text": Family(
        sizes=_sizes(48, 5120, 40, 202048, 8192, 8),
        fixed={**_ROPED, "mlp_bias": False},
        defaults={
            **_LLAMA_DEFAULTS, "max_position_embeddings": 131072, "norm_eps": 1e-5,
            "head_dim": 128, "num_experts": 16,
            "num_experts_per_tok": 1, "intermediate_size": 16384, "qk_norm": True,
            "sliding_window": 8192, "rope_theta": 500000.0,
        },
        names={
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "intermediate_size",
            "intermediate_size": "intermediate_size_mlp", "qk_norm": "use_qk_norm",
            "sliding_window": "attention_chunk_size",
        },
        plain={"interleave_moe_layer_step": ((1,), "only every nth layer has experts")},
        notes=(
            "most layers attend to chunks of attention_chunk_size tokens: longer sequences are "
            "refused as those beyond a sliding window are.",
        ),
    ),
    "phi3": Family(
        sizes=_sizes(32, 3072, 32, 32064, 8192),
        fixed={**_ROPED, "attention_bias": False, "mlp_bias": False},
        defaults={**_LLAMA_DEFAULTS, "max_position_embeddings": 4096, "norm_eps": 1e-5},
    ),
}  # fmt: skip


def layers_type(model_type: str) -> str:
    """Return whose layers a model type has: ``qwen3`` of ``qwen3_vl_text``."""
    if model_type in FAMILIES:
        return model_type
    bare = OF_TEXT.sub("", model_type, count=1)
    return SAME_TEXT.get(bare, bare)
