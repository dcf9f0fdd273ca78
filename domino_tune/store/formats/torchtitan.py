"""torchtitan's configuration: sections of its TOML file.

Names: torchtitan 0.2.2 (torchtitan/config/job_config.py: Training, Parallelism,
ActivationCheckpoint, Compile, Float8Linear; distributed/pipeline_parallel.py for modules of
stages; components/quantization/float8.py for the converter). 0.3 reads no
TOML; its Python configs of training and parallelism use these names (config/configs.py).
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Final

from domino_tune.store.formats import refuse_first
from domino_tune.store.plans import PlanFile
from simulator.specs import ClusterSpec, ModelSpec, Workload

Value = str | int | bool | list[str] | list[list[str]]
Sections = dict[str, dict[str, Value]]
DTYPES: Final = MappingProxyType({"bf16": "bfloat16", "fp32": "float32"})
_ROTATE: Final = MappingProxyType({"p2p": "alltoall", "all_gather": "allgather"})
"""How keys travel -> torchtitan's name: ``alltoall`` passes them around a ring, by all-to-alls."""
_RECOMPUTE: Final[dict[str, dict[str, Value]]] = {
    "none": {"mode": "none"},
    "per-op": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}
_FLOAT8: Final = "quantize.linear.float8"
"""Its converter of linear layers to FP8 with one scale a tensor, and the section that sets it."""
_FUSIONS: Final = ("norm_fusion", "rope_fusion", "swiglu_fusion", "bias_dropout_fusion")


def torchtitan_toml(plan_file: PlanFile) -> str:
    """Return the file's text. Raise InfeasiblePlanError (``target``) for settings that it cannot
    express."""
    lines: list[str] = []
    for name, section in torchtitan_sections(plan_file).items():
        # JSON and TOML write values of these types the same way.
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def torchtitan_sections(plan_file: PlanFile) -> Sections:
    """Return the sections; raise as ``torchtitan_toml`` does."""
    _check(plan_file)
    model, workload, cluster = plan_file.model, plan_file.workload, plan_file.cluster
    return {
        "training": _training(workload, cluster),
        "parallelism": {
            **_replicas(workload, cluster),
            "tensor_parallel_degree": cluster.tp,
            "enable_async_tensor_parallel": plan_file.plan.strategy == "async-tp",
            **_pipeline(model, workload, cluster),
            **_context(workload, cluster),
        },
        "activation_checkpoint": _RECOMPUTE[workload.recompute],
        "compile": {"enable": _compiles(plan_file), "components": ["model", "loss"]},
        **_quantized(workload, cluster),
    }


def _quantized(workload: Workload, cluster: ClusterSpec) -> Sections:
    """Return the sections of layers in FP8; the head stays as it is. Weights are gathered in FP8
    where the prediction does."""
    if workload.fp8_recipe == "none":
        return {}
    gathers = workload.fp8_param_gather and cluster.dp > 1 and workload.data_parallel != "replicas"
    names = "enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"
    return {
        "model": {"converters": [_FLOAT8]},
        _FLOAT8: {**dict.fromkeys(names, gathers), "filter_fqns": ["output"]},
    }


def _compiles(plan_file: PlanFile) -> bool:
    """Return whether the job needs torch.compile."""
    workload = plan_file.workload
    return (
        plan_file.plan.strategy == "async-tp"
        or workload.recompute == "per-op"  # eager torch also repeats unread ops
        or workload.fp8_recipe != "none"  # nor does it fuse casts
        or all(getattr(workload.implementation, name) for name in _FUSIONS)
    )


def torchtitan_notes(plan_file: PlanFile) -> list[str]:
    """Return notes on assumptions that the file cannot express."""
    workload, cluster = plan_file.workload, plan_file.cluster
    quantized = workload.fp8_recipe != "none"
    notes = [
        "For torchtitan 0.2. Add your own sections: "
        f"{'name and flavor to' if quantized else '[model] with the name and flavor'}"
        f"{' [model], those' if quantized else ''} of {plan_file.model.name}, [optimizer] and so "
        "on. From 0.3 on its configs are Python: "
        "training and parallelism have the same names, but enable_async_tensor_parallel is one of "
        "compile."
    ]
    if quantized:
        notes.append("FP8 is torchao's, with scales that are computed anew.")
    if plan_file.plan.tp_comm_overlap:
        notes.append(
            f"PyTorch chooses itself which GEMMs overlap; the prediction has "
            f"{', '.join(plan_file.plan.tp_comm_overlap)}."
        )
    if cluster.replicas > 1 and workload.data_parallel == "distributed-optimizer":
        notes.append(
            "torchtitan has no distributed optimizer, which the prediction has: FSDP that keeps "
            "gathered parameters is nearest."
        )
    if cluster.cp > 1 and workload.data_parallel == "replicas":
        notes.append("With context parallelism torchtitan shards parameters; the prediction not.")
    if not _mixes(workload, cluster) and workload.dtype == "bf16":
        notes.append(
            "torchtitan mixes precision with FSDP only: dtype makes all bf16, and there are no "
            "fp32 weights, which the prediction has."
        )
    elif workload.grad_dtype == "bf16":
        notes.append("torchtitan's FSDP sums gradients in fp32; the prediction in bf16.")
    if cluster.cuda_graph or workload.cuda_graph_scope:
        notes.append("torchtitan 0.2 has no option for CUDA graphs, which the prediction has.")
    if workload.tp_collectives != "nccl":
        notes.append(f"torchtitan has no {workload.tp_collectives} collectives; NCCL's run.")
    if workload.implementation.name != "torch":
        notes.append(
            f"Predicted with the kernels of {workload.implementation.label}, not PyTorch's "
            "(--implementation torch)."
        )
    return notes


def _check(plan_file: PlanFile) -> None:
    """Raise InfeasiblePlanError (``target``) for features that torchtitan lacks."""
    workload, cluster, plan = plan_file.workload, plan_file.cluster, plan_file.plan
    model = plan_file.model
    unsharded = cluster.tp > 1 and plan.strategy == "megatron" and not plan.sequence_parallel
    problems = (
        (
            model.num_experts > 0 or model.kv_lora_rank > 0,
            f"{model.name}, which has experts or latent attention, as this export describes "
            "layers; use --to megatron, or export the plan of a model without",
        ),
        (
            workload.dtype not in DTYPES,
            f"{workload.dtype} weights; make the plan with --dtype bf16 or fp32",
        ),
        (
            workload.fp8_recipe not in ("none", "tensorwise"),
            f"the recipe {workload.fp8_recipe} (of FP8 it has one scale a tensor); make the plan "
            "with --fp8-recipe tensorwise, or without",
        ),
        (
            workload.moments_dtype != "fp32",
            f"an Adam with moments in {workload.moments_dtype}; make the plan with --set "
            "moments_dtype=fp32",
        ),
        (
            workload.num_layers_at_start_in_bf16 + workload.num_layers_at_end_in_bf16 > 0,
            "layers in BF16 at the start and the end; make the plan without them",
        ),
        (
            unsharded,
            "tensor parallelism without sequence parallelism; make the plan with "
            "--sequence-parallel",
        ),
        (
            workload.recompute == "selective",
            "recomputation of the attention core alone, or of other modules; make the plan with "
            "--recompute none, per-op or full",
        ),
        (
            workload.recompute_layers > 0,
            "recomputation of the first layers alone; make the plan without --recompute-layers",
        ),
        (
            cluster.cp > 1 and workload.cp_comm not in _ROTATE,
            f"context parallelism by {workload.cp_comm}; make the plan with --cp-comm p2p or "
            "all_gather",
        ),
        *_pipeline_problems(plan_file),
    )
    refuse_first("torchtitan", problems)


def _pipeline_problems(plan_file: PlanFile) -> tuple[tuple[bool, str], ...]:
    schedule = plan_file.workload.pp_schedule if plan_file.cluster.pp > 1 else "1f1b"
    return (
        (
            schedule == "zero-bubble",
            "a zero-bubble schedule of one stage a rank; make the plan with "
            "--set pp_schedule=1f1b, or dualpipev",
        ),
        (
            schedule == "dualpipev" and _compiles(plan_file),
            "DualPipeV under torch.compile, which this plan needs; make the plan with "
            "--set pp_schedule=1f1b, or with --implementation torch and without --fp8-recipe",
        ),
    )


def _training(workload: Workload, cluster: ClusterSpec) -> dict[str, Value]:
    """Return the batch and the dtype. A pipeline takes its micro-batches in one step."""
    micros = workload.grad_accumulation
    rows = workload.micro_batch_size * (micros if cluster.pp > 1 else 1)
    training: dict[str, Value] = {
        "local_batch_size": rows,
        "global_batch_size": workload.micro_batch_size * micros * cluster.dp,
        "seq_len": workload.seq_length,
    }
    if _mixes(workload, cluster):
        training["mixed_precision_param"] = DTYPES[workload.dtype]
    else:
        training["dtype"] = DTYPES[workload.dtype]
    return training


def _mixes(workload: Workload, cluster: ClusterSpec) -> bool:
    """Return whether torchtitan shards weights. Otherwise it does not mix precision with tensor
    parallelism (maybe_enable_amp in distributed/utils.py)."""
    shards = cluster.dp > 1 and workload.data_parallel != "replicas"
    return shards or cluster.cp > 1 or cluster.tp * cluster.pp == 1


def _replicas(workload: Workload, cluster: ClusterSpec) -> dict[str, Value]:
    shards = workload.data_parallel != "replicas"
    found: dict[str, Value] = {
        "data_parallel_replicate_degree": 1 if shards else cluster.dp,
        "data_parallel_shard_degree": cluster.dp if shards else 1,
    }
    if shards and cluster.replicas > 1:
        keeps = workload.data_parallel == "distributed-optimizer"
        found["fsdp_reshard_after_forward"] = "never" if keeps else "always"
    return found


def _pipeline(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> dict[str, Value]:
    found: dict[str, Value] = {"pipeline_parallel_degree": cluster.pp}
    if cluster.pp == 1:
        return found
    names = {"1f1b": "1F1B", "gpipe": "GPipe", "dualpipev": "DualPipeV"}
    interleaved = cluster.vpp > 1 and workload.pp_schedule == "1f1b"
    name = "Interleaved1F1B" if interleaved else names[workload.pp_schedule]
    found["pipeline_parallel_schedule"] = name
    found["pipeline_parallel_microbatch_size"] = workload.micro_batch_size
    if workload.pp_layers:
        return {**found, "module_fqns_per_model_part": _modules(workload.pp_layers)}
    # By default its first and last stages have one layer less, for the embedding and the head.
    return {
        **found,
        "pipeline_parallel_layers_per_stage": model.num_hidden_layers // (cluster.pp * cluster.vpp),
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }


def _modules(counts: tuple[int, ...]) -> list[list[str]]:
    """Return the modules of each stage, by their names in torchtitan's models."""
    stages, layer = [], 0
    for count in counts:
        stages.append([f"layers.{layer + i}" for i in range(count)])
        layer += count
    return [["tok_embeddings", *stages[0]], *stages[1:-1], [*stages[-1], "norm", "output"]]


def _context(workload: Workload, cluster: ClusterSpec) -> dict[str, Value]:
    found: dict[str, Value] = {"context_parallel_degree": cluster.cp}
    if cluster.cp > 1:
        found["context_parallel_rotate_method"] = _ROTATE[workload.cp_comm]
    return found
