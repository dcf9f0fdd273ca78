"""Megatron-Bridge: a plan as a Python function that sets the fields of a ``ConfigContainer``.

Names: bridge/training/config.py, mixed_precision.py and comm_overlap.py of Megatron-Bridge 0.3.1,
and the configs of megatron-core 0.16, from which its model takes most fields. It runs on
megatron-core, so it refuses what Megatron-LM does.
"""

from __future__ import annotations

from typing import Final

from domino_tune.store.formats import refuse_first
from domino_tune.store.formats.megatron import (
    gather_notes,
    graph_scope,
    megatron_arguments,
    moments_options,
    stages_layout,
    training_arguments,
)
from domino_tune.store.formats.megatron_options import (
    expert_notes,
    expert_settings,
    latent_settings,
    pairing_settings,
    prediction_settings,
    userbuffers_config,
    userbuffers_notes,
    userbuffers_switches,
)
from domino_tune.store.plans import PlanFile
from simulator.implementation import Implementation
from simulator.specs import ClusterSpec, ModelSpec, Workload

Settings = dict[str, object]
"""Field of the container -> its value, or Code."""
POSITIONS: Final = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
ENTRIES: Final = {
    "ring_exchange": "RingExchangeOverlapCfg", "pipeline": "PipelineOverlapCfg",
    "bulk": "BulkOverlapCfg",
}  # fmt: skip
"""Method of userbuffers -> its class in comm_overlap.py."""
TORCH_DTYPES: Final = {"bf16": "torch.bfloat16", "fp8": "torch.uint8"}
"""Dtypes of the optimizer."""
CLUSTER_SIZE: Final = 2
"""Thread blocks of a cluster, as in the configs of comm_overlap.py."""
HEAD: Final = '''"""Settings of a plan for Megatron-Bridge: call configure with your config."""

import torch
from megatron.bridge.training import comm_overlap
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.transformer.enums import AttnBackend


def configure(config: ConfigContainer) -> ConfigContainer:
    """Set model, layout, precision and overlap of the plan; data and learning rate stay."""
'''


class Code(str):
    """Python that is written as it is."""

    __slots__ = ()


def bridge_python(plan_file: PlanFile) -> str:
    """Return a module with ``configure``. Raise InfeasiblePlanError (``target``) for features that
    Megatron-Bridge lacks."""
    settings = bridge_settings(plan_file)
    lines = [f"    config.{key} = {_written(value)}\n" for key, value in settings.items()]
    return f"{HEAD}{''.join(lines)}    return config\n"


def bridge_settings(plan_file: PlanFile) -> Settings:
    """Return field -> value; raise as ``bridge_python`` does."""
    model, workload, cluster = plan_file.model, plan_file.workload, plan_file.cluster
    plan, batch = plan_file.plan, workload.micro_batch_size * workload.grad_accumulation
    megatron_arguments(model, workload, cluster)  # which refuses what megatron-core does not run
    training_arguments(model, workload, cluster, sequence_parallel=plan.sequence_parallel)
    _check(workload, cluster)
    scopes = graph_scope(model, workload)
    sections: dict[str, Settings] = {
        "model": {
            **_shape(model, workload),
            **_kind(model),
            **expert_settings(model, workload, cluster),
            **latent_settings(model),
            **prediction_settings(model),
            "tensor_model_parallel_size": cluster.tp,
            "sequence_parallel": plan.sequence_parallel,
            **_pipeline(model, workload, cluster),
            **_context(workload, cluster),
            **_recomputation(model, workload),
            **_kernels(workload.implementation),
            **_graphs(scopes),
            **(userbuffers_switches(plan) if plan.strategy == "userbuffers" else {}),
        },
        "train": {
            "micro_batch_size": workload.micro_batch_size,
            "global_batch_size": batch * cluster.dp,
        },
        "dataset": {"seq_length": workload.seq_length},
        "ddp": _replicas(workload, cluster),
    }
    made = {
        f"{section}.{name}": value
        for section, settings in sections.items()
        for name, value in settings.items()
    }
    if cluster.replicas > 1:
        sharded = workload.data_parallel == "distributed-optimizer"
        made["optimizer.use_distributed_optimizer"] = sharded
    made |= _moments(workload)
    if scopes:
        made["rng.te_rng_tracker"] = True
    return {**made, "mixed_precision": _precision(workload), "comm_overlap": _overlap(plan_file)}


def bridge_notes(plan_file: PlanFile) -> list[str]:
    """Return notes on assumptions that no field expresses."""
    workload, cluster = plan_file.workload, plan_file.cluster
    notes = [*userbuffers_notes(plan_file.plan), *expert_notes(plan_file.model, workload)]
    notes += gather_notes(workload, cluster)
    if cluster.cuda_graph:
        notes.append(
            "The prediction has one CUDA graph of an iteration; model.cuda_graph_impl is yours to "
            "set."
        )
    if not workload.implementation.name.startswith("megatron"):
        notes.append(
            f"Predicted with the kernels of {workload.implementation.label}, not Megatron's core "
            "(--implementation megatron-te)."
        )
    return notes


def _check(workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InfeasiblePlanError (``target``) for what Megatron-LM runs and this export lacks."""
    fsdp = cluster.replicas > 1 and workload.data_parallel == "fsdp"
    problems = (
        (fsdp, "FSDP2; make the plan with --data-parallel distributed-optimizer"),
        (
            workload.recompute == "selective" and workload.recompute_layers > 0,
            "modules again in some layers; make the plan without --recompute-layers",
        ),
        (
            workload.implementation.name == "megatron-2022",
            "layers without TransformerEngine; make the plan with --implementation megatron-te",
        ),
    )
    refuse_first("Megatron-Bridge", problems)


def _shape(model: ModelSpec, workload: Workload) -> Settings:
    return {
        "seq_length": workload.seq_length,
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "kv_channels": model.head_dim,
        "vocab_size": model.vocab_size,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "layernorm_epsilon": model.norm_eps,
    }


def _kind(model: ModelSpec) -> Settings:
    settings: Settings = {
        "gated_linear_unit": model.gated_mlp,
        "activation_func": Code(f"torch.nn.functional.{'silu' if model.gated_mlp else 'gelu'}"),
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.attention_bias,
        "qk_layernorm": model.qk_norm or model.kv_lora_rank > 0,
        "share_embeddings_and_output_weights": model.tie_word_embeddings,
        "position_embedding_type": POSITIONS[model.position_embedding],
    }
    if model.position_embedding == "rope":
        settings["rotary_base"] = round(model.rope_theta)
    if model.rope_scaling_factor > 1:
        settings |= {"rope_scaling": True, "rope_scaling_factor": model.rope_scaling_factor}
    return settings


def _pipeline(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> Settings:
    settings: Settings = {"pipeline_model_parallel_size": cluster.pp}
    if cluster.vpp > 1:
        settings["virtual_pipeline_model_parallel_size"] = cluster.vpp
    if workload.pp_layers:
        settings["pipeline_model_parallel_layout"] = stages_layout(model, workload)
    return settings


def _context(workload: Workload, cluster: ClusterSpec) -> Settings:
    settings: Settings = {"context_parallel_size": cluster.cp}
    if cluster.cp > 1:
        settings["cp_comm_type"] = workload.cp_comm
    return settings


def _recomputation(model: ModelSpec, workload: Workload) -> Settings:
    if workload.recompute == "none":
        return {"recompute_granularity": None}
    settings: Settings = {"recompute_granularity": workload.recompute}
    if workload.recompute == "selective":
        settings["recompute_modules"] = list(workload.modules)
    if workload.recompute == "full":
        some = 0 < workload.recompute_layers < model.num_hidden_layers
        settings["recompute_method"] = "block" if some else "uniform"
        settings["recompute_num_layers"] = workload.recompute_layers if some else 1
    return settings


def _replicas(workload: Workload, cluster: ClusterSpec) -> Settings:
    if cluster.replicas == 1:
        return {}
    sharded = workload.data_parallel == "distributed-optimizer"
    overlaps = workload.overlap_grad_reduce
    return {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": sharded and overlaps and workload.overlap_param_gather,
    }


def _moments(workload: Workload) -> Settings:
    """Return the settings of the precision-aware optimizer; {} for moments in fp32."""
    options = moments_options(workload)
    if not options:
        return {}
    told: Settings = {
        "optimizer.use_distributed_optimizer": True,
        "optimizer.use_precision_aware_optimizer": True,
    }
    return told | {f"optimizer.{name}": Code(TORCH_DTYPES[one]) for name, one in options.items()}


def _precision(workload: Workload) -> Code:
    recipe = workload.fp8_recipe
    told: Settings = {workload.dtype: True}
    if workload.dtype != "fp32":
        dtype = Code({"bf16": "torch.bfloat16", "fp16": "torch.float16"}[workload.dtype])
        told |= {"params_dtype": dtype, "pipeline_dtype": dtype, "autocast_dtype": dtype}
    told["grad_reduce_in_fp32"] = workload.grad_dtype == "fp32"
    if recipe == "nvfp4":
        told |= {"fp4": "e2m1", "fp4_recipe": recipe}
    elif recipe != "none":
        told |= {"fp8": "hybrid", "fp8_recipe": recipe}
    ends = workload.num_layers_at_start_in_bf16, workload.num_layers_at_end_in_bf16
    if any(ends):
        told |= {
            "first_last_layers_bf16": True, "num_layers_at_start_in_bf16": ends[0],
            "num_layers_at_end_in_bf16": ends[1],
        }  # fmt: skip
    if workload.fp8_param_gather:
        told["fp8_param_gather"] = True
        if recipe == "mxfp8":
            told["reuse_grad_buf_for_mxfp8_param_ag"] = True
    return _call("MixedPrecisionConfig", told)


def _overlap(plan_file: PlanFile) -> Code:
    plan, workload, cluster = plan_file.plan, plan_file.workload, plan_file.cluster
    config = userbuffers_config(plan) if plan.strategy == "userbuffers" else {}
    told: Settings = {"tp_comm_overlap": bool(config)}
    if config:
        entries: Settings = {}
        for gemm, entry in config.items():
            sizes = {key: value for key, value in entry.items() if key != "method"}
            method = f"comm_overlap.{ENTRIES[str(entry['method'])]}"
            entries[gemm] = _call(method, {**sizes, "cga_size": CLUSTER_SIZE})
        name = "comm_overlap.TransformerLayerTPOverlapCfg"
        absent = dict.fromkeys(GEMM_FIELDS, None)
        told["tp_comm_overlap_cfg"] = _call(name, {**absent, **entries})
    if cluster.vpp > 1:
        told |= {
            "overlap_p2p_comm": workload.overlap_p2p, "batch_p2p_comm": not workload.overlap_p2p,
        }  # fmt: skip
    return _call("comm_overlap.CommOverlapConfig", {**told, **pairing_settings(plan)})


GEMM_FIELDS: Final = tuple(
    f"{linear}_{way}"
    for linear, ways in (
        ("qkv", ("fprop", "dgrad", "wgrad")), ("proj", ("fprop", "dgrad")),
        ("fc1", ("fprop", "dgrad", "wgrad")), ("fc2", ("fprop", "dgrad")),
    )
    for way in ways
)  # fmt: skip
"""Fields of TransformerLayerTPOverlapCfg, which has no defaults."""


def _kernels(how: Implementation) -> Settings:
    if not how.name.startswith("megatron"):
        return {}
    return {
        **({} if how.flash_attention else {"attention_backend": Code("AttnBackend.unfused")}),
        "gradient_accumulation_fusion": how.gradient_accumulation_fusion,
        "cross_entropy_loss_fusion": how.cross_entropy_loss_fusion,
        **({"cross_entropy_fusion_impl": "te"} if how.cross_entropy_loss_fusion else {}),
        "apply_rope_fusion": how.rope_fusion,
        "bias_activation_fusion": how.swiglu_fusion,
        "bias_dropout_fusion": how.bias_dropout_fusion,
    }


def _graphs(scopes: list[str]) -> Settings:
    """Return the fields of CUDA graphs of parts of layers."""
    if not scopes:
        return {}
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": scopes}


def _call(name: str, told: Settings) -> Code:
    inside = ", ".join(f"{key}={_written(value)}" for key, value in told.items())
    return Code(f"{name}({inside})")


def _written(value: object) -> str:
    return str(value) if isinstance(value, Code) else repr(value)
