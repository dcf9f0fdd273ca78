"""Megatron-LM's command-line arguments for a model, a workload and a cluster."""

from __future__ import annotations

from typing import Final

from simulator.errors import InfeasiblePlanError
from simulator.specs import ClusterSpec, ModelSpec, Workload

DTYPE_FLAGS: Final = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": []}


def megatron_arguments(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return arguments of Megatron-LM's pretrain_gpt.py: one option with its value an entry.

    The user adds data, learning rate and checkpoints. Raise InfeasiblePlanError (``target``) for
    what Megatron-LM cannot run.
    """
    if workload.dtype not in DTYPE_FLAGS:
        raise InfeasiblePlanError(
            f"Megatron-LM does not train in {workload.dtype}; use --dtype bf16, fp16 or fp32.",
            reason="target",
        )
    if model.hidden_act == "relu" or (model.hidden_act == "silu") != model.gated_mlp:
        raise InfeasiblePlanError(
            f"Megatron-LM has no option for {model.name}'s MLP ({model.hidden_act}, "
            f"{'gated' if model.gated_mlp else 'not gated'}); it has GeLU and SwiGLU.",
            reason="target",
        )
    missing = [name for name in model.extras if name != "qk_norm"]
    if missing:
        raise InfeasiblePlanError(
            f"Megatron-LM's pretrain_gpt.py has no option for {model.name}'s {', '.join(missing)}; "
            "export the plan of a model without.",
            reason="target",
        )
    batch = workload.micro_batch_size * workload.grad_accumulation * cluster.dp
    return [
        f"--tensor-model-parallel-size {cluster.tp}",
        *_pipeline(model, workload, cluster),
        *_context(workload, cluster),
        *_recomputation(workload),
        f"--seq-length {workload.seq_length}",
        f"--micro-batch-size {workload.micro_batch_size}",
        f"--global-batch-size {batch}",
        *DTYPE_FLAGS[workload.dtype],
        *_shape(model),
        *_kind(model),
    ]


def training_arguments(
    workload: Workload, cluster: ClusterSpec, *, sequence_parallel: bool
) -> list[str]:
    """Return Megatron-LM's own options of what ranks share, which its forks do not all have."""
    arguments = ["--sequence-parallel"] if sequence_parallel else []
    if cluster.replicas == 1:
        return arguments
    if workload.data_parallel == "fsdp":
        return [*arguments, "--use-torch-fsdp2"]
    if workload.data_parallel == "distributed-optimizer":
        arguments.append("--use-distributed-optimizer")
    if workload.overlap_grad_reduce:
        arguments.append("--overlap-grad-reduce")
        if workload.overlap_param_gather and workload.data_parallel != "replicas":
            arguments.append("--overlap-param-gather")
    return arguments


def _pipeline(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return the pipeline's options. Uneven stages are a layout: E the embedding, t a layer, L the
    head and loss, | between stages (Megatron-LM: pipeline_parallel_layer_layout.py)."""
    arguments = [f"--pipeline-model-parallel-size {cluster.pp}"]
    if cluster.pp == 1:
        return arguments
    if workload.pp_schedule != "1f1b":
        raise InfeasiblePlanError(
            f"Megatron-LM has no option for --pp-schedule {workload.pp_schedule}; make the plan "
            "with 1f1b.",
            reason="target",
        )
    if (workload.overlap_p2p and cluster.vpp == 1) or (
        cluster.vpp > 1 and cluster.pp == 2 and not workload.overlap_p2p
    ):
        raise InfeasiblePlanError(
            "Megatron-LM overlaps messages between stages with virtual stages only, and needs to "
            "where two stages have some; make the plan "
            + ("without --overlap-p2p." if workload.overlap_p2p else "with --overlap-p2p."),
            reason="target",
        )
    if workload.pp_layers:
        stages = "|".join("t" * count for count in workload.pp_layers)
        arguments.append(f"--pipeline-model-parallel-layout 'E{stages}L'")
    elif cluster.vpp > 1:
        each = model.num_hidden_layers // (cluster.pp * cluster.vpp)
        arguments.append(f"--num-layers-per-virtual-pipeline-stage {each}")
    if cluster.vpp > 1 and not workload.overlap_p2p:
        arguments.append("--no-overlap-p2p-communication")
    return arguments


def _context(workload: Workload, cluster: ClusterSpec) -> list[str]:
    if cluster.cp == 1:
        return []
    return [f"--context-parallel-size {cluster.cp}", f"--cp-comm-type {workload.cp_comm}"]


def _recomputation(workload: Workload) -> list[str]:
    if workload.recompute == "none":
        return []
    if workload.recompute == "selective" and workload.recompute_layers:
        raise InfeasiblePlanError(
            "Megatron-LM recomputes the attention core in all layers or in none; make the plan "
            "without --recompute-layers.",
            reason="target",
        )
    if workload.recompute == "selective":
        return ["--recompute-granularity selective"]
    if not workload.recompute_layers:
        way, layers = "uniform", 1
    else:
        way, layers = "block", workload.recompute_layers
    return [
        "--recompute-granularity full", f"--recompute-method {way}",
        f"--recompute-num-layers {layers}",
    ]  # fmt: skip


def _shape(model: ModelSpec) -> list[str]:
    arguments = [
        f"--num-layers {model.num_hidden_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {model.intermediate_size}",
        f"--num-attention-heads {model.num_attention_heads}",
        f"--max-position-embeddings {model.max_position_embeddings}",
        f"--hidden-dropout {model.hidden_dropout:g}",
        f"--attention-dropout {model.attention_dropout:g}",
        f"--norm-epsilon {model.norm_eps:g}",
    ]
    if model.attention_size != model.hidden_size:
        arguments.append(f"--kv-channels {model.head_dim}")
    if model.num_key_value_heads != model.num_attention_heads:
        arguments += ["--group-query-attention", f"--num-query-groups {model.num_key_value_heads}"]
    return arguments


def _kind(model: ModelSpec) -> list[str]:
    arguments = []
    if model.gated_mlp:
        arguments.append("--swiglu")
    if model.norm == "rmsnorm":
        arguments.append("--normalization RMSNorm")
    if model.qk_norm:
        arguments.append("--qk-layernorm")
    if model.position_embedding == "rope":
        arguments += ["--position-embedding-type rope", f"--rotary-base {model.rope_theta:.0f}"]
        if model.rope_scaling_factor > 1:
            scale = f"--rope-scaling-factor {model.rope_scaling_factor:g}"
            arguments += ["--use-rope-scaling", scale]
    elif model.position_embedding == "none":
        arguments.append("--position-embedding-type none")
    if not model.mlp_bias:
        arguments.append("--disable-bias-linear")
        if model.attention_bias:
            arguments.append("--add-qkv-bias")
    if not model.tie_word_embeddings:
        arguments.append("--untie-embeddings-and-output-weights")
    return arguments
