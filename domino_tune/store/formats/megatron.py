"""Megatron-LM's command-line arguments for a model, a workload, a cluster and a plan.

Names and exclusions are those of megatron/training/arguments.py at 000c4ac, and of the configs of
megatron-core 0.16.1 (core/model_parallel_config.py, core/transformer/transformer_config.py).
"""

from __future__ import annotations

from typing import Final

from domino_tune.store.formats import refuse_first, refused
from domino_tune.store.formats.megatron_options import (
    CONFIG_FILE,
    expert_arguments,
    expert_notes,
    userbuffers_config,
    userbuffers_notes,
    userbuffers_switches,
)
from domino_tune.store.plans import PlanFile
from simulator.implementation import IMPLEMENTATIONS, KEYS, Implementation
from simulator.modules import graphed
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

DTYPE_FLAGS: Final = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": []}
ROPE_SCALING: Final = (1.0, 4.0, 8192)
"""Low and high frequency factor and original length with which Megatron-LM always scales angles
(core/models/common/embeddings/rotary_pos_embedding.py).
"""
_KERNEL_FLAGS: Final = {
    "flash_attention": (False, ["--attention-backend unfused"]),
    "cross_entropy_loss_fusion": (
        True,
        ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"],
    ),
    "rope_fusion": (False, ["--no-rope-fusion"]),
    "swiglu_fusion": (False, ["--no-bias-swiglu-fusion"]),
    "bias_dropout_fusion": (False, ["--no-bias-dropout-fusion"]),
    "gradient_accumulation_fusion": (False, ["--no-gradient-accumulation-fusion"]),
    "check_for_nan_in_grad": (False, ["--no-check-for-nan-in-loss-and-grad"]),
    "clip_grad": (False, ["--clip-grad 0"]),
    "log_params_norm": (True, ["--log-params-norm"]),
    "log_num_zeros_in_grad": (True, ["--log-num-zeros-in-grad"]),
}
"""Key of an Implementation -> the value that is not Megatron-LM's default, the options
that set it.
"""
_KEYS_ELSEWHERE: Final = (
    "moe_permute_fusion", "deterministic_attention", "nccl_algo", "launch_order",
)  # fmt: skip
"""Keys that other options or the environment set."""
_SWITCHES: Final = {
    "tp_comm_overlap_ag": "--disable-tp-comm-overlap-ag",
    "tp_comm_overlap_rs": "--disable-tp-comm-overlap-rs",
    "tp_comm_overlap_rs_dgrad": "--tp-comm-overlap-rs-dgrad",
    "tp_comm_bulk_dgrad": "--disable-tp-comm-bulk-dgrad",
    "tp_comm_bulk_wgrad": "--disable-tp-comm-bulk-wgrad",
}


def megatron_arguments(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return arguments of Megatron-LM's pretrain_gpt.py: one option with its value per entry.

    The user adds data, learning rate and checkpoints. Raise InfeasiblePlanError (``target``) if
    Megatron-LM cannot run this.
    """
    check_model(model, workload)
    if shards_parameters(workload, cluster) and model.tie_word_embeddings:
        raise refused(
            f"Megatron-LM's FSDP2 does not go with tied embeddings, which {model.name} has; make "
            "the plan with --data-parallel distributed-optimizer."
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
        *quantization_flags(workload),
        *_shape(model, workload),
        *_kind(model),
        *expert_arguments(model, workload, cluster),
    ]


def training_arguments(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, *, sequence_parallel: bool
) -> list[str]:
    """Return Megatron-LM's own options, which not all of its forks have: what ranks share, kernels
    and CUDA graphs. Raise InfeasiblePlanError (``target``) for options that exclude each other
    there."""
    arguments = ["--sequence-parallel"] if sequence_parallel else []
    arguments += _gradients(workload)
    arguments += _replicas(workload, cluster)
    arguments += _moments(workload)
    arguments += _graphs(model, workload, cluster)
    arguments += _kernels(workload.implementation)
    return list(dict.fromkeys(arguments))


def userbuffers_arguments(plan: SlicePlan, how: Implementation) -> list[str]:
    """Return the options of a plan of strategy userbuffers; [] if no GEMM overlaps.

    Raise InfeasiblePlanError (``target``) as the switches do, and without TransformerEngine.
    """
    switches = [_SWITCHES[name] for name in userbuffers_switches(plan)]
    if not userbuffers_config(plan):
        return []
    if how.name == "megatron-2022":
        raise refused(
            "Userbuffers are TransformerEngine's, which --implementation megatron-2022 lacks; make "
            "the plan with --implementation megatron-te."
        )
    return ["--tp-comm-overlap", f"--tp-comm-overlap-cfg {CONFIG_FILE}", *switches]


def megatron_notes(plan_file: PlanFile) -> list[str]:
    """Return notes on assumptions that no option expresses."""
    model, workload, cluster = plan_file.model, plan_file.workload, plan_file.cluster
    how = workload.implementation
    notes = []
    if plan_file.plan.strategy == "userbuffers" and userbuffers_config(plan_file.plan):
        notes.append(
            f"{CONFIG_FILE} is of the same plan: `plan export --to te-userbuffers --out "
            f"{CONFIG_FILE}`."
        )
        notes += userbuffers_notes(plan_file.plan)
    if model.rope_scaling_factor > 1 and _scaling(model) != ROPE_SCALING:
        notes.append(
            f"Megatron-LM scales rotary angles by {ROPE_SCALING} (low, high, original length), "
            f"{model.name} by {_scaling(model)}: as fast, but another model."
        )
    if workload.tp_collectives != "nccl":
        notes.append(f"Megatron-LM has no {workload.tp_collectives} collectives; NCCL's run.")
    if workload.fp8_recipe not in ("none", "nvfp4"):
        notes.append(
            "FP8 is hybrid, as usual: E4M3, and E5M2 for gradients. E4M3 alone takes the same time "
            "and memory."
        )
    notes += [*expert_notes(model, workload), *_kernel_notes(how), *gather_notes(workload, cluster)]
    if cluster.cuda_graph and how.check_for_nan_in_grad:
        notes.append(
            "Megatron-LM's CUDA graph of an iteration needs checks for NaN off; the prediction has "
            "them."
        )
    return notes + _queue_notes(workload, cluster)


def quantization_flags(workload: Workload) -> list[str]:
    """Return the options of quantized layers; FP8 is hybrid, Megatron-LM's usual format: E4M3, and
    E5M2 for gradients."""
    recipe = workload.fp8_recipe
    if recipe == "none":
        return []
    fp4 = recipe == "nvfp4"
    flags = ["--fp4-format e2m1"] if fp4 else ["--fp8-format hybrid"]
    flags.append(f"--fp4-recipe {recipe}" if fp4 else f"--fp8-recipe {recipe}")
    ends = workload.num_layers_at_start_in_bf16, workload.num_layers_at_end_in_bf16
    if any(ends):
        flags += [
            "--first-last-layers-bf16", f"--num-layers-at-start-in-bf16 {ends[0]}",
            f"--num-layers-at-end-in-bf16 {ends[1]}",
        ]  # fmt: skip
    return [*flags, *(["--fp8-param-gather"] if workload.fp8_param_gather else [])]


def check_model(model: ModelSpec, workload: Workload) -> None:
    """Raise InfeasiblePlanError (``target``) for a model or dtype that Megatron-LM cannot train."""
    if workload.dtype not in DTYPE_FLAGS:
        raise refused(
            f"Megatron-LM does not train in {workload.dtype}; use --dtype bf16, fp16 or fp32."
        )
    if model.hidden_act == "relu" or (model.hidden_act == "silu") != model.gated_mlp:
        raise refused(
            f"Megatron-LM has no option for {model.name}'s MLP ({model.hidden_act}, "
            f"{'gated' if model.gated_mlp else 'not gated'}); it has GeLU and SwiGLU."
        )
    missing = [name for name in model.extras if name != "qk_norm"]
    if missing:
        raise refused(
            f"Megatron-LM's pretrain_gpt.py has no option for {model.name}'s {', '.join(missing)}; "
            "export the plan of a model without."
        )
    biased = [name for name in ("qkv", "proj", "fc1", "fc2") if model.has_bias(name)]
    if biased not in ([], ["qkv"], ["qkv", "proj", "fc1", "fc2"]):
        raise refused(
            f"Megatron-LM has biases on all linears, on qkv, or on none; {model.name} has them on "
            f"{', '.join(biased)}: export the plan of a model that fits."
        )


def _gradients(workload: Workload) -> list[str]:
    """Return the option for the dtype of main gradients, if it is not Megatron-LM's default."""
    if workload.dtype == "fp32" and workload.grad_dtype != "fp32":
        raise refused(
            "Megatron-LM keeps gradients of fp32 weights in fp32; make the plan with --grad-dtype "
            "fp32."
        )
    if workload.dtype == "bf16" and workload.grad_dtype == "bf16":
        return ["--grad-reduce-in-bf16"]
    if workload.dtype == "fp16" and workload.grad_dtype == "fp32":
        return ["--accumulate-allreduce-grads-in-fp32"]
    return []


def moments_options(workload: Workload) -> dict[str, str]:
    """Return the fields of megatron-core's optimizer that have dtypes, with these; {} for moments
    in fp32. Raise InfeasiblePlanError (``target``) where it has no such optimizer."""
    if workload.moments_dtype == "fp32":
        return {}
    if workload.data_parallel != "distributed-optimizer":
        raise refused(
            f"Megatron-LM has moments in {workload.moments_dtype} with its distributed optimizer "
            "only; make the plan with --data-parallel distributed-optimizer."
        )
    if workload.implementation.name == "megatron-2022":
        raise refused(
            f"Moments in {workload.moments_dtype} are of TransformerEngine's Adam, which "
            "--implementation megatron-2022 lacks; make the plan with megatron-te."
        )
    names = ("exp_avg_dtype", "exp_avg_sq_dtype")
    grads = {"main_grads_dtype": "bf16"} if workload.grad_dtype == "bf16" else {}
    return {**dict.fromkeys(names, workload.moments_dtype), **grads}


def _moments(workload: Workload) -> list[str]:
    options = moments_options(workload)
    told = [f"--{name.replace('_', '-')} {dtype}" for name, dtype in options.items()]
    aware = ["--use-distributed-optimizer", "--use-precision-aware-optimizer"]
    return [*aware, *told] if told else []


def _replicas(workload: Workload, cluster: ClusterSpec) -> list[str]:
    if cluster.replicas == 1:
        return []
    if workload.data_parallel == "fsdp":
        if workload.dtype == "fp16":
            raise refused(
                "Megatron-LM's FSDP2 does not go with fp16; make the plan with --dtype bf16, or "
                "with --data-parallel distributed-optimizer."
            )
        return ["--use-torch-fsdp2", "--no-gradient-accumulation-fusion"]
    arguments = []
    if workload.data_parallel == "distributed-optimizer":
        arguments.append("--use-distributed-optimizer")
    if workload.overlap_grad_reduce:
        arguments.append("--overlap-grad-reduce")
        if workload.overlap_param_gather and workload.data_parallel != "replicas":
            arguments.append("--overlap-param-gather")
    return arguments


def gather_notes(workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return a note if the prediction gathers parameters beside compute and sums no gradients
    there, which Megatron-LM excludes."""
    gathers = workload.overlap_param_gather and workload.data_parallel == "distributed-optimizer"
    if cluster.replicas == 1 or workload.overlap_grad_reduce or not gathers:
        return []
    return [
        "Megatron-LM gathers parameters beside compute only where it sums gradients there, too: "
        "--overlap-param-gather is left out, which the prediction has. Make the plan with --set "
        "overlap_param_gather=false, or with overlap_grad_reduce."
    ]


def graph_scope(model: ModelSpec, workload: Workload) -> list[str]:
    """Return the parts of layers that CUDA graphs replay. Raise InfeasiblePlanError (``target``)
    where megatron-core excludes them (core/transformer/transformer_config.py)."""
    scopes: list[str] = [*graphed(workload.cuda_graph_scope, experts=model.num_experts > 0)]
    problems = (
        (
            bool(scopes) and workload.recompute == "full",
            "CUDA graphs of parts of layers that are computed again; make the plan with "
            "--recompute none or selective",
        ),
        (
            bool(scopes) and workload.implementation.name == "megatron-2022",
            "CUDA graphs of parts of layers without TransformerEngine; make the plan with "
            "--implementation megatron-te",
        ),
        (
            "moe_preprocess" in scopes and "moe_router" not in scopes,
            "a CUDA graph of moe_preprocess without moe_router; make the plan with both",
        ),
        (
            "moe_router" in scopes and "moe" in workload.modules,
            "a CUDA graph of moe_router in experts that are computed again; make the plan with "
            "other recompute_modules",
        ),
    )
    refuse_first("Megatron-LM", problems)
    return scopes


def _graphs(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    if scopes := graph_scope(model, workload):
        parts = ["--cuda-graph-impl transformer_engine", f"--cuda-graph-scope {' '.join(scopes)}"]
        return [*parts, "--te-rng-tracker"]
    if not cluster.cuda_graph:
        return []
    if workload.recompute == "full":
        raise refused(
            "Megatron-LM has no CUDA graph of full recomputation; make the plan without "
            "--cuda-graph, or with another --recompute."
        )
    return [
        "--cuda-graph-impl local", "--cuda-graph-scope full_iteration", "--te-rng-tracker",
        "--no-check-for-nan-in-loss-and-grad",
    ]  # fmt: skip


def _kernels(how: Implementation) -> list[str]:
    """Return the options of the kernels and passes; [] for other frameworks' kernels."""
    if not how.name.startswith("megatron"):
        return []
    layers = "transformer_engine" if how.name == "megatron-te" else "local"
    arguments = [f"--transformer-impl {layers}"]
    for key, (unusual, options) in _KERNEL_FLAGS.items():
        if getattr(how, key) is unusual:
            arguments += options
    return arguments


def _kernel_notes(how: Implementation) -> list[str]:
    if not how.name.startswith("megatron"):
        return [
            f"Predicted with the kernels of {how.label}, not Megatron-LM's (--implementation "
            "megatron-te)."
        ]
    usual = IMPLEMENTATIONS[how.name]
    silent = [
        f"{key}={str(getattr(how, key)).lower()}"
        for key in KEYS
        if getattr(how, key) != getattr(usual, key)
        and key not in _KERNEL_FLAGS and key not in _KEYS_ELSEWHERE
    ]  # fmt: skip
    if not silent:
        return []
    return [f"Predicted with {', '.join(silent)}, for which Megatron-LM has no option."]


def _queue_notes(workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return a note if Megatron-LM insists on a launch order that differs from the prediction's."""
    ordered = workload.implementation.launch_order == "ordered"
    if shards_parameters(workload, cluster):
        told = "Megatron-LM refuses CUDA_DEVICE_MAX_CONNECTIONS=1 with FSDP2, so it is left out"
        return [f"{told}; the prediction has one launch queue."] if ordered else []
    if ordered or (cluster.tp == 1 and cluster.cp == 1):
        return []
    return [
        "On GPUs before Blackwell Megatron-LM starts only with CUDA_DEVICE_MAX_CONNECTIONS=1 "
        f"here; the prediction has launch_order={workload.implementation.launch_order}."
    ]


def shards_parameters(workload: Workload, cluster: ClusterSpec) -> bool:
    """Return whether replicas share the parameters, too (FSDP2)."""
    return cluster.replicas > 1 and workload.data_parallel == "fsdp"


def _scaling(model: ModelSpec) -> tuple[float, float, int]:
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    return low, high, model.original_max_position_embeddings


def stages_layout(model: ModelSpec, workload: Workload) -> str:
    """Return the layout of uneven stages: E the embedding, t a layer, m one of multi-token
    prediction, L the head and loss, | between stages (Megatron-LM:
    pipeline_parallel_layer_layout.py)."""
    stages = "|".join("t" * count for count in workload.pp_layers)
    return f"E{stages}{'m' * model.num_nextn_predict_layers}L"


def _pipeline(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return the pipeline's options; uneven stages are a layout."""
    arguments = [f"--pipeline-model-parallel-size {cluster.pp}"]
    if cluster.pp == 1:
        return arguments
    if workload.pp_schedule != "1f1b":
        raise refused(
            f"Megatron-LM has no option for --pp-schedule {workload.pp_schedule}; make the plan "
            "with 1f1b."
        )
    if (workload.overlap_p2p and cluster.vpp == 1) or (
        cluster.vpp > 1 and cluster.pp == 2 and not workload.overlap_p2p
    ):
        raise refused(
            "Megatron-LM overlaps messages between stages with virtual stages only, and needs to "
            "where two stages have some; make the plan "
            + ("without --overlap-p2p." if workload.overlap_p2p else "with --overlap-p2p.")
        )
    if workload.pp_layers:
        layout = stages_layout(model, workload)
        arguments.append(f"--pipeline-model-parallel-layout '{layout}'")
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
    if workload.recompute == "per-op":
        raise refused(
            "Megatron-LM does not choose single ops to recompute, as torchtitan does; make the "
            "plan with --recompute none, selective or full."
        )
    if workload.recompute == "selective" and workload.recompute_layers:
        raise refused(
            "Megatron-LM recomputes modules, such as the attention core, in all layers or in none; "
            "make the plan without --recompute-layers."
        )
    if workload.recompute == "selective":
        named = " ".join(workload.recompute_modules)
        modules = [f"--recompute-modules {named}"] if named else []
        return ["--recompute-granularity selective", *modules]
    if not workload.recompute_layers:
        way, layers = "uniform", 1
    else:
        way, layers = "block", workload.recompute_layers
    return [
        "--recompute-granularity full", f"--recompute-method {way}",
        f"--recompute-num-layers {layers}",
    ]  # fmt: skip


def _shape(model: ModelSpec, workload: Workload) -> list[str]:
    # Megatron-LM refuses sequences longer than the positions, although rotary ones have no limit.
    positions = max(model.max_position_embeddings, workload.seq_length)
    arguments = [
        f"--num-layers {model.num_hidden_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {model.intermediate_size}",
        f"--num-attention-heads {model.num_attention_heads}",
        f"--max-position-embeddings {positions}",
        f"--hidden-dropout {model.hidden_dropout:g}",
        f"--attention-dropout {model.attention_dropout:g}",
        f"--norm-epsilon {model.norm_eps:g}",
    ]
    if model.kv_lora_rank:
        return arguments
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
    if model.qk_norm or model.kv_lora_rank:
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
