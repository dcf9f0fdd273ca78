"""Well-known models by name, in their published shapes.

GPT-3: arXiv 2005.14165, table 2.1, with Megatron-LM's training settings (dropout 0.1, tied
embeddings, vocabulary 50257). Where the table's heads × head size is not its hidden size (1.3B:
24 × 128, not 2048; 13B: 40 × 128, not 5140), Megatron-LM's shape is used. 30B is from Megatron-LM.
Llama 2: arXiv 2307.09288; Llama 3: arXiv 2407.21783, table 3; both with the released sizes.
Qwen3: config.json of huggingface.co/Qwen/Qwen3-8B, Qwen3-14B, Qwen3-32B, Qwen3-30B-A3B and
Qwen3-235B-A22B. Mixtral 8x7B: arXiv 2401.04088, table 1, and config.json of
huggingface.co/mistralai/Mixtral-8x7B-v0.1. DeepSeek-V2: arXiv 2405.04434, section 3.1.2, and V3:
arXiv 2412.19437, section 4.2, both with config.json of huggingface.co/deepseek-ai. gpt-oss: arXiv
2508.10925, table 1, and config.json of huggingface.co/openai/gpt-oss-120b and gpt-oss-20b.
Llama 4 Scout: config.json of huggingface.co/meta-llama/Llama-4-Scout-17B-16E, its text part; chunks
of attention are its window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.specs import ModelSpec


def _gpt3(size: str, layers: int, hidden: int, heads: int) -> ModelSpec:
    return ModelSpec(
        name=f"gpt3-{size}",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        vocab_size=50257,
        max_position_embeddings=2048,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )


def llama_model(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, *,
    vocab: int = 32000, positions: int = 4096, theta: float = 10000.0,
) -> ModelSpec:  # fmt: skip
    """Return a model with Llama's structure: RMSNorm, SwiGLU, RoPE, no biases, untied LM head."""
    return ModelSpec(
        name=name,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=positions,
        hidden_act="silu",
        gated_mlp=True,
        norm="rmsnorm",
        position_embedding="rope",
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        rope_theta=theta,
    )


def _llama3(size: str, layers: int, hidden: int, heads: int, ffn: int, positions: int) -> ModelSpec:
    return llama_model(
        f"llama3-{size}", layers, hidden, heads, 8, ffn,
        vocab=128256, positions=positions, theta=500000.0,
    )  # fmt: skip


def _qwen3(size: str, layers: int, hidden: int, heads: int, ffn: int) -> ModelSpec:
    model = llama_model(
        f"qwen3-{size}", layers, hidden, heads, 8, ffn, vocab=151936, positions=40960,
        theta=1000000.0,
    )  # fmt: skip
    return replace(model, head_dim=128, qk_norm=True, norm_eps=1e-6)


def _qwen3_experts(size: str, layers: int, hidden: int, heads: int, ffn: int) -> ModelSpec:
    dense = replace(_qwen3(size, layers, hidden, heads, 3 * hidden), num_key_value_heads=4)
    return replace(dense, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=ffn)


def _mixtral() -> ModelSpec:
    dense = llama_model(
        "mixtral-8x7b", 32, 4096, 32, 8, 14336, positions=32768, theta=1000000.0
    )  # fmt: skip
    return replace(dense, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=14336)


def _deepseek(name: str, layers: int, hidden: int, ffn: int, vocab: int) -> ModelSpec:
    """Return a model with DeepSeek's latent attention; its experts are yet to be set."""
    dense = llama_model(
        f"deepseek-{name}", layers, hidden, 128, 128, ffn, vocab=vocab, positions=163840
    )  # fmt: skip
    return replace(
        dense, head_dim=192, q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64,
        v_head_dim=128, norm_eps=1e-6,
    )  # fmt: skip


def _gpt_oss(size: str, layers: int, experts: int) -> ModelSpec:
    dense = llama_model(
        f"gpt-oss-{size}", layers, 2880, 64, 8, 2880, vocab=201088, positions=131072,
        theta=150000.0,
    )  # fmt: skip
    return replace(
        dense, head_dim=64, attention_bias=True, mlp_bias=True, num_experts=experts,
        num_experts_per_tok=4, moe_intermediate_size=2880, swiglu_limit=7.0,
    )  # fmt: skip


def _llama4_scout() -> ModelSpec:
    dense = llama_model(
        "llama4-scout", 48, 5120, 40, 8, 16384, vocab=202048, positions=10485760, theta=500000.0
    )  # fmt: skip
    return replace(
        dense, qk_norm=True, sliding_window=8192, num_experts=16, num_experts_per_tok=1,
        moe_intermediate_size=8192, shared_expert_intermediate_size=8192,
    )  # fmt: skip


MODELS: Final[dict[str, ModelSpec]] = {
    model.name: model
    for model in (
        _gpt3("1.3b", 24, 2048, 16),
        _gpt3("2.7b", 32, 2560, 32),
        _gpt3("6.7b", 32, 4096, 32),
        _gpt3("13b", 40, 5120, 40),
        _gpt3("30b", 48, 7168, 56),
        _gpt3("175b", 96, 12288, 96),
        llama_model("llama2-7b", 32, 4096, 32, 32, 11008),
        llama_model("llama2-13b", 40, 5120, 40, 40, 13824),
        llama_model("llama2-70b", 80, 8192, 64, 8, 28672),
        _llama3("8b", 32, 4096, 32, 14336, 8192),
        _llama3("70b", 80, 8192, 64, 28672, 8192),
        _llama3("405b", 126, 16384, 128, 53248, 131072),
        _qwen3("8b", 36, 4096, 32, 12288),
        _qwen3("14b", 40, 5120, 40, 17408),
        _qwen3("32b", 64, 5120, 64, 25600),
        _qwen3_experts("30b-a3b", 48, 2048, 32, 768),
        _qwen3_experts("235b-a22b", 94, 4096, 64, 1536),
        _mixtral(),
        replace(
            _deepseek("v2", 60, 5120, 12288, 102400), num_experts=160, num_experts_per_tok=6,
            moe_intermediate_size=1536, shared_expert_intermediate_size=3072,
            first_k_dense_replace=1,
        ),
        replace(
            _deepseek("v3", 61, 7168, 18432, 129280), num_experts=256, num_experts_per_tok=8,
            moe_intermediate_size=2048, shared_expert_intermediate_size=2048,
            first_k_dense_replace=3, num_nextn_predict_layers=1,
        ),
        _gpt_oss("20b", 24, 32),
        _gpt_oss("120b", 36, 128),
        _llama4_scout(),
    )
}  # fmt: skip
"""Presets by name, small to large within a family."""
WINDOWS_LEFT_OUT: Final = (
    "every second layer attends to a window of few tokens, and softmax has a learned sink; both "
    "are left out: all layers are priced with attention to the whole sequence, which counts as "
    "assumed."
)
NOTES: Final = dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), WINDOWS_LEFT_OUT)
"""Name of a preset -> what of the model is left out."""
