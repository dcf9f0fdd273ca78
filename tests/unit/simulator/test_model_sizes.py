"""Models with experts, latent attention and further predictions: sizes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.presets import MODELS

LLAMA = MODELS["llama3-8b"]
MIXTRAL = MODELS["mixtral-8x7b"]
V3 = MODELS["deepseek-v3"]


def test_layers_of_each_kind() -> None:
    assert (LLAMA.dense_layers, LLAMA.expert_layers) == (32, 0)
    assert (MIXTRAL.dense_layers, MIXTRAL.expert_layers) == (0, 32)
    assert (V3.dense_layers, V3.expert_layers) == (3, 58)
    assert V3.predicts_with_experts
    assert not replace(V3, num_hidden_layers=3).predicts_with_experts


def test_a_layer_of_experts_is_a_dense_one_of_more_mlps_and_a_router() -> None:
    mlp = 3 * 4096 * 14336
    assert MIXTRAL.expert_linear_parameters == MIXTRAL.expert_parameters == mlp
    assert MIXTRAL.router_parameters == 8 * 4096
    more = MIXTRAL.expert_layer_parameters - MIXTRAL.layer_parameters
    assert more == 7 * mlp + 8 * 4096
    assert MIXTRAL.active_linear_parameters == MIXTRAL.linear_parameters + mlp
    biased = replace(MIXTRAL, mlp_bias=True)
    assert biased.expert_parameters == mlp + 2 * 14336 + 4096


def test_latent_attention_by_hand() -> None:
    """Down and up for queries; down, with the rotated part, and up for keys and values; out."""
    by_hand = (
        7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * (128 + 128)
        + 128 * 128 * 7168
    )  # fmt: skip
    assert V3.attention_linear_parameters == by_hand
    plain = replace(V3, q_lora_rank=0).attention_linear_parameters
    assert plain - by_hand == 7168 * 128 * 192 - 1536 * (7168 + 128 * 192)
    assert V3.latent_norm_parameters == 1536 + 512
    assert V3.attention_size == 128 * 128


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (LLAMA, {"num_experts_per_tok": 2}, "num_experts_per_tok = 2 needs experts: set num_exp"),
        (LLAMA, {"first_k_dense_replace": 1}, "first_k_dense_replace = 1 needs experts"),
        (LLAMA, {"v_head_dim": 64}, "v_head_dim = 64 is of latent attention: set kv_lora_rank"),
        (LLAMA, {"kv_lora_rank": 512}, "qk_rope_head_dim must be a whole number ≥ 1, got 0"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "per_tok = 9 is above num_experts = 8; set it to"),
        (MIXTRAL, {"num_experts_per_tok": 0}, "num_experts_per_tok must be a whole number ≥ 1"),
        (MIXTRAL, {"moe_intermediate_size": 0}, "moe_intermediate_size must be a whole number"),
        (MIXTRAL, {"first_k_dense_replace": 33}, "replace = 33 is above num_hidden_layers = 32"),
        (MIXTRAL, {"gated_mlp": False}, "gated MLPs; set gated_mlp=true"),
        (V3, {"head_dim": 64}, "qk_rope_head_dim = 64 elements are rotated; got head_dim = 64"),
        (V3, {"num_key_value_heads": 8}, "set num_key_value_heads=128, got 8"),
        (V3, {"qk_norm": True}, "without qk_norm; set qk_norm=false"),
    ],
)
def test_sizes_that_no_model_can_have(model: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(model, **changes)
