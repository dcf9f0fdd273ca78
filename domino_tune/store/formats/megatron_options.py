"""What several exports to Megatron-LM share: options for experts, and userbuffers.

Names: megatron-core 0.16.1, core/transformer/transformer_config.py and
core/model_parallel_config.py, whose fields the options of megatron/training/arguments.py set. An
export is written in fields; options are those of another spelling.
"""

from __future__ import annotations

from typing import Final

from domino_tune.store.formats import refused
from simulator.overlap import EP_OVERLAP, GATHERS, GEMMS, Overlap, gemms_of, overlap_of
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

Settings = dict[str, object]
SWITCHES: Final = (
    "moe_grouped_gemm", "moe_permute_fusion", "multi_latent_attention", "moe_shared_expert_overlap",
)  # fmt: skip
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
        "moe_permute_fusion": workload.implementation.moe_permute_fusion,
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
    return [_option(field, value) for field, value in settings.items() if value is not False]


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


# TransformerEngine's userbuffers ------------------------------------------------------------------
# The method of each GEMM as YAML, and Megatron-LM's switches.
#
# The file is what Megatron-LM gives ``initialize_ub`` (its --tp-comm-overlap-cfg;
# megatron/training/initialize.py). Keys: ``initialize_ub`` in
# transformer_engine/pytorch/module/base.py, at fecb10b and in 2.x alike; Megatron-Bridge 0.3.1 has
# the same ones (bridge/training/comm_overlap.py). A GEMM that the file leaves out gets
# TransformerEngine's usual method, so that only a switch of the layers turns an overlap off.

Entry = dict[str, str | int | bool]
CONFIG_FILE: Final = "userbuffers.yaml"
"""The name that exports give the file."""
_FORWARD: Final = gemms_of("forward")
_BACKWARD: Final = gemms_of("backward")
_BULK: Final = ("tp_comm_bulk_dgrad", "tp_comm_bulk_wgrad")
_ATTRIBUTES: Final = {
    "qkv_fprop": "linear_qkv.ub_overlap_ag_fprop",
    "fc1_fprop": "linear_fc1.ub_overlap_ag_fprop",
    "proj_dgrad": "linear_proj.ub_overlap_ag_dgrad",
    "fc2_dgrad": "linear_fc2.ub_overlap_ag_dgrad",
    "proj_fprop": "linear_proj.ub_overlap_rs_fprop",
    "fc2_fprop": "linear_fc2.ub_overlap_rs_fprop",
    "qkv_dgrad": "linear_qkv.ub_bulk_dgrad and ub_bulk_wgrad",
    "fc1_dgrad": "linear_fc1.ub_bulk_dgrad and ub_bulk_wgrad",
}
"""GEMM -> what switches it alone, on Megatron-LM's layers (transformer_engine/pytorch/module/
linear.py and layernorm_linear.py)."""


def userbuffers_config(plan: SlicePlan) -> dict[str, Entry]:
    """Return the entries of the GEMMs that overlap, in TransformerEngine's order.

    Raise InfeasiblePlanError (``target``) for a method that TransformerEngine has not there.
    """
    config: dict[str, Entry] = {}
    for gemm in GEMMS:
        how = _overlap(plan, gemm)
        if how.method == "none":
            continue
        if how.method == "bulk" and gemm not in _BACKWARD:
            raise refused(
                f"TransformerEngine has no bulk overlap for {gemm}; make the plan with "
                f"{gemm}=pipeline or {gemm}=none."
            )
        config[gemm] = _entry(how)
        if how.method == "bulk":
            # The gather of the input runs beside the dgrad, the sum of the dgrad beside the wgrad.
            config[gemm.replace("dgrad", "wgrad")] = _entry(how)
    return config


def userbuffers_yaml(plan: SlicePlan) -> str:
    """Return the file's text; raise as ``userbuffers_config``."""
    lines: list[str] = []
    for gemm, entry in userbuffers_config(plan).items():
        lines.append(f"{gemm}:")
        lines += [f"  {key}: {_scalar(value)}" for key, value in entry.items()]
    return "\n".join(lines or ["{}"]) + "\n"


def userbuffers_switches(plan: SlicePlan) -> dict[str, bool]:
    """Return fields of Megatron-LM's ModelParallelConfig that are not as usual.

    Each is for several GEMMs, and turned where all of them are alike. Raise InfeasiblePlanError
    (``target``) where two backward methods exclude each other.
    """
    switches = {}
    if _all_off(plan, GATHERS):
        switches["tp_comm_overlap_ag"] = False
    if _all_off(plan, _FORWARD):
        switches["tp_comm_overlap_rs"] = False
    methods = {_overlap(plan, gemm).method for gemm in _BACKWARD}
    if methods == {"none"}:
        switches |= dict.fromkeys(_BULK, False)
    elif methods == {"pipeline"}:
        switches["tp_comm_overlap_rs_dgrad"] = True
    elif "pipeline" in methods:
        raise refused(
            f"Megatron-LM has one switch for the dgrads' pipelines, got {' and '.join(methods)}; "
            f"make the plan with pipeline for both of {', '.join(_BACKWARD)}, or for neither."
        )
    return switches


def userbuffers_notes(plan: SlicePlan) -> list[str]:
    """Return what the switches cannot say: GEMMs without overlap among others that have it."""
    groups = (GATHERS, _FORWARD, _BACKWARD)
    alone = [
        gemm
        for group in groups
        for gemm in group
        if _overlap(plan, gemm).method == "none" and not _all_off(plan, group)
    ]
    if not alone:
        return []
    where = ", ".join(_ATTRIBUTES[gemm] for gemm in alone)
    return [
        f"The plan has no overlap for {', '.join(alone)}. Megatron's configs switch them off only "
        "together with others, and TransformerEngine overlaps them as usual. Set to False in code: "
        f"{where}."
    ]


def _overlap(plan: SlicePlan, gemm: str) -> Overlap:
    return overlap_of(plan.strategy, plan.tp_comm_overlap, gemm)


def _all_off(plan: SlicePlan, gemms: tuple[str, ...]) -> bool:
    return all(_overlap(plan, gemm).method == "none" for gemm in gemms)


def _entry(how: Overlap) -> Entry:
    """Return the keys of a method. Copy engines do the ring's copies: it needs one SM and leaves
    the GEMM all others. The simulator keeps the SMs of the other methods free, so the margin is
    set."""
    if how.method == "ring_exchange":
        ring: Entry = {"method": how.method, "num_sm": 1, "set_sm_margin": False}
        return {**ring, "aggregate": True} if how.together > 1 else ring
    entry: Entry = {"method": how.method, "num_sm": how.num_sm, "set_sm_margin": True}
    if how.method == "pipeline":
        entry["num_splits"] = how.num_splits
        if how.fp8:
            entry["fp8_buf"] = True
    return entry


def _scalar(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
