"""Well-known models by name, in their published shapes.

GPT-3: arXiv 2005.14165, table 2.1, with Megatron-LM's training settings (dropout 0.1, tied
embeddings, vocabulary 50257). Where the table's heads × head size is not its hidden size (1.3B:
24 × 128, not 2048; 13B: 40 × 128, not 5140), Megatron-LM's shape is used. 30B is from Megatron-LM.
Llama 2: arXiv 2307.09288; Llama 3: arXiv 2407.21783, table 3; both with the released sizes.
Qwen3: config.json of huggingface.co/Qwen/Qwen3-8B, Qwen3-14B and Qwen3-32B.
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
    )
}
"""Presets by name, small to large within a family."""
