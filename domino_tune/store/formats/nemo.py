"""NeMo's Hydra overrides ``model.…`` and ``trainer.…`` of a GPT on megatron-core.

Names: NeMo 2.2.1 (keys of ``cfg`` that nemo/collections/nlp/models/language_modeling/
megatron_gpt_model.py and megatron_base_model.py read), and the fields of megatron-core's
TransformerConfig, which it takes from ``model`` by their own names. ``++`` sets a key whether a
config file has it or not.
"""

from __future__ import annotations

from typing import Final

from domino_tune.store.formats.megatron import check_model
from domino_tune.store.formats.te_userbuffers import (
    userbuffers_config,
    userbuffers_notes,
    userbuffers_switches,
)
from domino_tune.store.plans import PlanFile
from simulator.errors import InfeasiblePlanError
from simulator.implementation import Implementation
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

Value = str | int | float | bool
Settings = dict[str, Value]
POSITIONS: Final = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def nemo_overrides(plan_file: PlanFile) -> list[str]:
    """Return one override per entry. Raise InfeasiblePlanError (``target``) for features that NeMo
    lacks.
    """
    settings = nemo_settings(plan_file)
    return [*_trainer(plan_file), *(f"++model.{key}={value}" for key, value in settings.items())]


def nemo_settings(plan_file: PlanFile) -> Settings:
    """Return key below ``model`` -> value; raise as ``nemo_overrides`` does."""
    model, workload, cluster = plan_file.model, plan_file.workload, plan_file.cluster
    check_model(model, workload)
    _check(workload, cluster)
    return {
        "mcore_gpt": True,
        "transformer_engine": True,
        "megatron_amp_O2": workload.dtype == "bf16",
        "micro_batch_size": workload.micro_batch_size,
        "global_batch_size": workload.micro_batch_size * workload.grad_accumulation * cluster.dp,
        "encoder_seq_length": workload.seq_length,
        "tensor_model_parallel_size": cluster.tp,
        "sequence_parallel": plan_file.plan.sequence_parallel,
        **_pipeline(workload, cluster),
        **_context(workload, cluster),
        **_recomputation(model, workload),
        **_shape(model, workload),
        **_kind(model),
        **_replicas(workload, cluster),
        **_kernels(workload.implementation),
        **_userbuffers(plan_file.plan),
    }


def nemo_notes(plan_file: PlanFile) -> list[str]:
    """Return notes on assumptions that no override expresses."""
    workload, cluster = plan_file.workload, plan_file.cluster
    notes = []
    if plan_file.plan.strategy == "userbuffers" and userbuffers_config(plan_file.plan):
        notes += userbuffers_notes(plan_file.plan)
    if cluster.replicas > 1 and workload.data_parallel == "replicas":
        notes.append(
            "NeMo overlaps sums of gradients with its distributed optimizer only; the prediction "
            f"has overlap_grad_reduce={str(workload.overlap_grad_reduce).lower()}."
        )
    if cluster.cuda_graph:
        notes.append("No override makes one CUDA graph of an iteration, which the prediction has.")
    if not workload.implementation.name.startswith("megatron"):
        notes.append(
            f"Predicted with the kernels of {workload.implementation.label}, not Megatron's core "
            "(--implementation megatron-te)."
        )
    return notes


def _trainer(plan_file: PlanFile) -> list[str]:
    """Return the overrides of Lightning's trainer: its ranks, and the type of the layers."""
    workload, cluster = plan_file.workload, plan_file.cluster
    precision = {"bf16": "bf16", "fp32": "32"}[workload.dtype]
    return [
        f"trainer.precision={precision}",
        f"trainer.devices={min(cluster.ranks_per_node, cluster.world_size)}",
        f"trainer.num_nodes={cluster.nodes}",
    ]


def _check(workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InfeasiblePlanError (``target``) for features that Megatron-LM supports and
    NeMo lacks.
    """
    interleaves = cluster.vpp > 1
    problems = (
        (workload.dtype == "fp16", "fp16 with fp32 weights; make the plan with --dtype bf16"),
        (
            workload.fp8_recipe != "none",
            "FP8 in this export; export --format megatron, or make the plan without --fp8-recipe",
        ),
        (
            cluster.replicas > 1 and workload.data_parallel == "fsdp",
            "FSDP2; make the plan with --data-parallel distributed-optimizer",
        ),
        (
            cluster.pp > 1 and workload.pp_schedule != "1f1b",
            f"--pp-schedule {workload.pp_schedule}; make the plan with 1f1b",
        ),
        (
            cluster.pp > 1 and bool(workload.pp_layers),
            "stages of unequal layers; make the plan without --pp-layers",
        ),
        (
            cluster.pp > 1 and workload.overlap_p2p and not interleaves,
            "overlapped messages without virtual stages; make the plan without --overlap-p2p",
        ),
        (
            workload.recompute == "per-op",
            "a choice of single ops to recompute; make the plan with --recompute none, selective "
            "or full",
        ),
        (
            workload.recompute == "selective" and workload.recompute_layers > 0,
            "the attention core again in some layers; make the plan without --recompute-layers",
        ),
        (
            workload.implementation.name == "megatron-2022",
            "layers without TransformerEngine; make the plan with --implementation megatron-te",
        ),
    )
    for found, what in problems:
        if found:
            raise InfeasiblePlanError(f"NeMo does not run {what}.", reason="target")


def _pipeline(workload: Workload, cluster: ClusterSpec) -> Settings:
    settings: Settings = {"pipeline_model_parallel_size": cluster.pp}
    if cluster.vpp > 1:
        settings["virtual_pipeline_model_parallel_size"] = cluster.vpp
        settings["overlap_p2p_comm"] = workload.overlap_p2p
        settings["batch_p2p_comm"] = not workload.overlap_p2p
    return settings


def _context(workload: Workload, cluster: ClusterSpec) -> Settings:
    settings: Settings = {"context_parallel_size": cluster.cp}
    if cluster.cp > 1:
        settings["cp_comm_type"] = workload.cp_comm
    return settings


def _recomputation(model: ModelSpec, workload: Workload) -> Settings:
    if workload.recompute == "none":
        return {"activations_checkpoint_granularity": "null"}
    settings: Settings = {"activations_checkpoint_granularity": workload.recompute}
    if workload.recompute == "full":
        some = 0 < workload.recompute_layers < model.num_hidden_layers
        settings["activations_checkpoint_method"] = "block" if some else "uniform"
        settings["activations_checkpoint_num_layers"] = workload.recompute_layers if some else 1
    return settings


def _shape(model: ModelSpec, workload: Workload) -> Settings:
    return {
        "max_position_embeddings": max(model.max_position_embeddings, workload.seq_length),
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "kv_channels": model.head_dim,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "layernorm_epsilon": model.norm_eps,
    }


def _kind(model: ModelSpec) -> Settings:
    settings: Settings = {
        "activation": "fast-swiglu" if model.gated_mlp else "gelu",
        "normalization": model.norm,
        "bias": model.mlp_bias,
        "qkv_bias": model.attention_bias,
        "share_embeddings_and_output_weights": model.tie_word_embeddings,
        "position_embedding_type": POSITIONS[model.position_embedding],
        "qk_layernorm": model.qk_norm,
    }
    if model.position_embedding == "rope":
        settings["rotary_base"] = round(model.rope_theta)
    if model.rope_scaling_factor > 1:
        settings |= {
            "scale_positional_embedding": True,
            "scale_factor": model.rope_scaling_factor,
            "low_freq_factor": model.rope_low_freq_factor,
            "high_freq_factor": model.rope_high_freq_factor,
            "old_context_len": model.original_max_position_embeddings,
        }
    return settings


def _replicas(workload: Workload, cluster: ClusterSpec) -> Settings:
    if cluster.replicas == 1 or workload.data_parallel != "distributed-optimizer":
        return {}
    return {
        "optim.name": "mcore_distributed_optim",
        "optim.grad_sync_dtype": workload.grad_dtype,
        "optim.overlap_grad_sync": workload.overlap_grad_reduce,
        "optim.overlap_param_sync": workload.overlap_grad_reduce and workload.overlap_param_gather,
    }


def _kernels(how: Implementation) -> Settings:
    if not how.name.startswith("megatron"):
        return {}
    return {
        "attention_backend": "auto" if how.flash_attention else "unfused",
        "gradient_accumulation_fusion": how.gradient_accumulation_fusion,
        "cross_entropy_loss_fusion": how.cross_entropy_loss_fusion,
        "apply_rope_fusion": how.rope_fusion,
        "bias_activation_fusion": how.swiglu_fusion,
        "bias_dropout_add_fusion": how.bias_dropout_fusion,
    }


def _userbuffers(plan: SlicePlan) -> Settings:
    """Return the switches and each GEMM's method; ``model`` itself may contain the config."""
    config = userbuffers_config(plan) if plan.strategy == "userbuffers" else {}
    if not config:
        return {"ub_tp_comm_overlap": False}
    return {
        "ub_tp_comm_overlap": True,
        **userbuffers_switches(plan),
        **{
            f"ub_tp_comm_overlap_cfg.{gemm}.{key}": value
            for gemm, entry in config.items()
            for key, value in entry.items()
        },
    }
