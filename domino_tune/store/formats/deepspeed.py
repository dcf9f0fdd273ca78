"""Arguments that make DeepSpeed's Domino run a plan (training/DeepSpeed-Domino in its examples).

The example takes the options of its own Megatron-LM, of August 2023 (pretrain_gpt3_13b.sh at
9478a6f), and ``domino_intra_layer_overlap`` from domino/language_model.py (at 379f572). Its layers
are DeepSpeed's (deepspeed/runtime/domino/transformer.py, since 0.16.6).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from domino_tune.store.formats import refuse_first, refused
from domino_tune.store.formats.megatron import megatron_arguments
from domino_tune.store.plans import PlanFile
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

_USUAL: Final = MappingProxyType({"--norm-epsilon": "1e-05", "--rotary-base": "10000"})
"""Options that a Megatron-LM of 2023 lacks, or has under another name -> the value that it uses."""


def deepspeed_arguments(plan_file: PlanFile, plan: SlicePlan) -> tuple[list[str], dict[str, bool]]:
    """Return arguments of its pretrain_gpt.py, and fields of the Domino config to set in code.

    ``plan``: the file's, in an order that DeepSpeed has. Raise InfeasiblePlanError (``target``) as
    ``megatron_arguments`` does, and for whatever Domino's example runs differently or not at all.
    """
    arguments = check_deepspeed(plan_file.model, plan_file.workload, plan_file.cluster)
    if plan_file.cluster.replicas > 1 and plan_file.workload.data_parallel != "replicas":
        arguments.append("--use-distributed-optimizer")
    intra = plan.order == "intra"
    return [*arguments, "--no-gradient-accumulation-fusion"], {"domino_intra_layer_overlap": intra}


def deepspeed_notes(plan_file: PlanFile) -> list[str]:
    """Return notes on assumptions that no option expresses."""
    workload, cluster = plan_file.workload, plan_file.cluster
    notes = [
        "The setting is no option: write it into domino/language_model.py of DeepSpeed's example, "
        "which has config.domino_intra_layer_overlap = False."
    ]
    if cluster.replicas > 1 and workload.overlap_grad_reduce:
        notes.append(
            "Domino's example sums gradients of replicas after the backward pass; the prediction "
            "beside it (--no-overlap-grad-reduce has them after it, too)."
        )
    if cluster.cuda_graph or workload.cuda_graph_scope:
        notes.append("Domino's example makes no CUDA graph, which the prediction has.")
    if workload.implementation.name != "torch":
        notes.append(
            f"Predicted with the kernels of {workload.implementation.label}, not PyTorch's "
            "(--implementation torch)."
        )
    return notes


def check_deepspeed(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> list[str]:
    """Return the arguments that do not depend on the plan. Raise InfeasiblePlanError (``target``)
    for features that Domino's example does not implement."""
    biases = {model.has_bias(name) for name in ("qkv", "proj", "fc1", "fc2")}
    problems = (
        (cluster.pp > 1, "pipeline stages; make the plan with --pp 1"),
        (cluster.cp > 1, "context parallelism; make the plan with --cp 1"),
        (workload.recompute != "none", "recomputation; make the plan with --recompute none"),
        (model.num_experts > 0, "experts; take a model without"),
        (model.kv_lora_rank > 0, "latent attention; take a model without"),
        (workload.fp8_recipe != "none", "FP8; make the plan without --fp8-recipe"),
        (
            workload.moments_dtype != "fp32",
            "an optimizer with moments below fp32; make the plan with --set moments_dtype=fp32",
        ),
        (
            cluster.replicas > 1 and workload.data_parallel == "fsdp",
            "FSDP; make the plan with --data-parallel distributed-optimizer or replicas",
        ),
        (
            model.position_embedding == "none",
            f"{model.name}'s lack of position embeddings; take a model that has some",
        ),
        (
            len(biases) > 1,
            f"{model.name}'s biases on some linears only; take a model that has them "
            "on all or on none",
        ),
    )
    refuse_first("DeepSpeed's Domino", problems)
    arguments = []
    for entry in megatron_arguments(model, workload, cluster):
        name, _, value = entry.partition(" ")
        if name not in _USUAL:
            arguments.append(entry)
        elif value != _USUAL[name]:
            raise refused(
                f"DeepSpeed's Domino has no option {name}: it computes with {_USUAL[name]}, not "
                f"{model.name}'s {value}; take a model that fits."
            )
    return arguments
