"""Settings: the models, links and plans that the report covers by default."""

from __future__ import annotations

from typing import Final

from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import llama_model
from simulator.specs import ModelSpec, Workload

LINKS: Final = ("500mbit", "1gbit", "2gbit", "4gbit")


def _gpt(name: str, hidden: int, layers: int) -> ModelSpec:
    return ModelSpec(
        name=name, num_hidden_layers=layers, hidden_size=hidden,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64, head_dim=64,
        intermediate_size=4 * hidden, vocab_size=2048, max_position_embeddings=1024,
    )  # fmt: skip


def _llama(name: str, hidden: int, layers: int) -> ModelSpec:
    return llama_model(
        name, layers, hidden, hidden // 64, hidden // 128, hidden * 11 // 4,
        vocab=2048, positions=1024,
    )  # fmt: skip


MODELS: Final[dict[str, tuple[ModelSpec, Workload]]] = {
    spec.name: (spec, Workload(seq_length=seq, micro_batch_size=batch, dtype="fp32"))
    for spec, seq, batch in (
        (_gpt("gpt-small", 512, 2), 192, 4),
        (_gpt("gpt-wide", 768, 2), 96, 4),
        (_llama("llama-small", 512, 2), 192, 4),
        (_llama("llama-wide", 768, 2), 96, 4),
    )
}
"""Model and workload by name, small enough to run hundreds of times on two cores."""

PLANS: Final[dict[str, SlicePlan]] = {
    "baseline": MEGATRON,
    "inter": SlicePlan(row_slices=2, order="inter", wgrad="eager"),
    "paper": SlicePlan(row_slices=2, order="paper", wgrad="eager"),
    "intra": SlicePlan(row_slices=2, order="intra", wgrad="deferred"),
    "rows": SlicePlan(row_slices=4),
    "columns": SlicePlan(
        row_slices=1, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"
    ),
    "hybrid": SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2),
}
"""Plans that run for each model and link, beside the plan that `tune` chooses."""
ALWAYS_TWO: Final = "inter"
"""The plan of DeepSpeed's Domino on every machine."""
TUNED: Final = "tuned"
