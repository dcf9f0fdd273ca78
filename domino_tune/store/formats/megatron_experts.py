"""Megatron-LM's options for experts, latent attention and multi-token prediction.

Names: megatron-core 0.16.1, core/transformer/transformer_config.py and
core/model_parallel_config.py, whose fields the options of megatron/training/arguments.py set. An
export is written in fields; options are those of another spelling.
"""

from __future__ import annotations

from typing import Final

from simulator.overlap import EP_OVERLAP
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

Settings = dict[str, object]
SWITCHES: Final = ("moe_grouped_gemm", "multi_latent_attention", "moe_shared_expert_overlap")
OPTION_OF: Final = {"num_moe_experts": "num-experts", "moe_layer_freq": "moe-layer-freq"}
"""Field -> its option, where that is not its name."""
DISPATCHERS: Final = {
    ("allgather", ""): "allgather", ("alltoall", ""): "alltoall", ("flex", "deepep"): "deepep",
    ("flex", "hybridep"): "hybridep",
}  # fmt: skip
"""Type and backend of a token dispatcher -> ours."""


def expert_settings(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> Settings:
    """Return the fields of experts and of their ranks; {} of a model without."""
    if not model.num_experts:
        return {}
    kind, backend = next(
        key for key, ours in DISPATCHERS.items() if ours == workload.moe_dispatcher
    )
    settings: Settings = {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.num_experts_per_tok,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": kind,
        "expert_model_parallel_size": cluster.ep,
        "expert_tensor_parallel_size": cluster.expert_tp,
    }
    if backend:
        settings["moe_flex_dispatcher_backend"] = backend
    if backend and workload.moe_dispatcher_sms:
        settings[f"moe_{backend}_num_sms"] = workload.moe_dispatcher_sms
    if model.shared_expert_intermediate_size:
        shared = model.shared_expert_intermediate_size
        settings["moe_shared_expert_intermediate_size"] = shared
        if workload.moe_shared_expert_overlap:
            settings["moe_shared_expert_overlap"] = True
    if model.first_k_dense_replace:
        settings["moe_layer_freq"] = [0] * model.dense_layers + [1] * model.expert_layers
    return settings


def latent_settings(model: ModelSpec) -> Settings:
    """Return the fields of latent attention, whose norms are switched by qk_layernorm."""
    if not model.kv_lora_rank:
        return {}
    settings: Settings = {
        "multi_latent_attention": True,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.head_dim - model.qk_rope_head_dim,
        "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
    }
    if model.q_lora_rank:
        settings["q_lora_rank"] = model.q_lora_rank
    return settings


def prediction_settings(model: ModelSpec) -> Settings:
    """Return the field of further predictions; {} of a model without."""
    count = model.num_nextn_predict_layers
    return {"mtp_num_layers": count} if count else {}


def expert_arguments(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return the options of all of these."""
    settings = {
        **expert_settings(model, workload, cluster), **latent_settings(model),
        **prediction_settings(model),
    }  # fmt: skip
    return [_option(field, value) for field, value in settings.items()]


def pairing_settings(plan: SlicePlan) -> Settings:
    """Return the fields of two micro-batches beside each other; {} for another strategy."""
    if plan.strategy != EP_OVERLAP:
        return {}
    settings: Settings = {"overlap_moe_expert_parallel_comm": True}
    if plan.wgrad == "deferred":
        settings["delay_wgrad_compute"] = True
    return settings


def pairing_arguments(plan: SlicePlan) -> list[str]:
    """Return the options of it."""
    return [f"--{field.replace('_', '-')}" for field in pairing_settings(plan)]


def expert_notes(model: ModelSpec, workload: Workload) -> list[str]:
    """Return notes on assumptions that no option expresses."""
    if not model.num_experts:
        return []
    if workload.moe_imbalance == 1:
        return [
            "Predicted with tokens balanced among experts, which "
            "--moe-router-force-load-balancing forces in runs for timing."
        ]
    return [
        f"Predicted with {workload.moe_imbalance:g} times the mean of tokens on the rank that has "
        "the most; what a router learns may differ."
    ]


def _option(field: str, value: object) -> str:
    option = OPTION_OF.get(field, field.replace("_", "-"))
    if field in SWITCHES:
        return f"--{option}"
    if isinstance(value, list):
        dense = value.count(0)
        return f"--{option} '([0]*{dense}+[1]*{len(value) - dense})'"
    return f"--{option} {value}"
