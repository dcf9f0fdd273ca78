"""Plans to export: models, layouts, memory and kernels that exports describe to frameworks."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from domino_tune.results.files import ExportResult
from domino_tune.verbs.plan import export_plan
from simulator.errors import InfeasiblePlanError
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec
from tests.support.plans import (
    ASYNC_TP,
    LLAMA,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    on,
    plan_file,
    told,
)

LLAMA31: Final = replace(
    LLAMA, name="llama3.1-8b", rope_scaling_factor=8.0, original_max_position_embeddings=8192,
    max_position_embeddings=131072,
)  # fmt: skip
SHORT: Final = replace(WORKLOAD, seq_length=2048)
TWO_SLICES: Final = SlicePlan(row_slices=2, order="greedy", wgrad="fill")
NARROW: Final = replace(
    MODELS["gpt3-1.3b"], name="gpt3-narrow", hidden_size=512, head_dim=32, intermediate_size=2048
)
"""It is built for real."""
BARE: Final = on(
    "megatron-te", flash_attention=False, rope_fusion=False, swiglu_fusion=False,
    bias_dropout_fusion=False, clip_grad=False, gradient_accumulation_fusion=False,
    check_for_nan_in_grad=False, log_params_norm=True, log_num_zeros_in_grad=True,
)  # fmt: skip
CASES: Final[MappingProxyType[str, dict[str, Any]]] = MappingProxyType(
    {
        "gpt3-13b": {"model": MODELS["gpt3-13b"], "workload": SHORT},
        "no sequence parallelism": {"plan": MEGATRON},
        "llama 3.1": {"model": LLAMA31},
        "qwen3": {"model": MODELS["qwen3-8b"]},
        "fp32": {"workload": replace(WORKLOAD, dtype="fp32")},
        "fp16": {"workload": replace(WORKLOAD, dtype="fp16")},
        "bf16 gradients": {"workload": replace(WORKLOAD, grad_dtype="bf16")},
        "PyTorch's kernels": {"workload": on("torch")},
        "bare kernels": {"workload": BARE},
        "replicas": {
            "workload": replace(WORKLOAD, data_parallel="replicas"),
            "cluster": ClusterSpec(tp=4, dp=2),
        },
        "distributed optimizer": {
            "workload": replace(WORKLOAD, data_parallel="distributed-optimizer"),
            "cluster": ClusterSpec(tp=4, dp=4),
        },
        "layers in fp8": {"workload": replace(on("torch"), fp8_recipe="tensorwise")},
        "graphs of parts": {
            "plan": MEGATRON,
            "model": MODELS["qwen3-30b-a3b"],
            "workload": replace(WORKLOAD, cuda_graph_scope=("attn", "moe_router")),
            "cluster": ClusterSpec(tp=1, dp=8, ep=8),
        },
        "fsdp": {
            "workload": replace(WORKLOAD, data_parallel="fsdp"),
            "cluster": ClusterSpec(tp=4, dp=2),
        },
        "pipeline": {"cluster": ClusterSpec(tp=2, pp=4)},
        "virtual stages": {
            "workload": replace(WORKLOAD, overlap_p2p=True),
            "cluster": ClusterSpec(tp=2, pp=2, vpp=2),
        },
        "virtual stages in turn": {"cluster": ClusterSpec(tp=2, pp=4, vpp=2)},
        "stages in a V": {
            "workload": replace(on("torch"), pp_schedule="dualpipev"),
            "cluster": ClusterSpec(tp=2, pp=2, vpp=2),
        },
        "uneven stages": {
            "workload": replace(WORKLOAD, pp_layers=(17, 15)),
            "cluster": ClusterSpec(tp=4, pp=2),
        },
        "context, ring": {"cluster": ClusterSpec(tp=4, cp=2)},
        "context, gathered": {
            "workload": replace(WORKLOAD, cp_comm="all_gather"),
            "cluster": ClusterSpec(tp=2, cp=2, dp=2),
        },
        "context, heads": {
            "workload": replace(WORKLOAD, cp_comm="a2a"),
            "cluster": ClusterSpec(tp=4, cp=2),
        },
        "attention again": {"workload": replace(WORKLOAD, recompute="selective")},
        "layers again": {"workload": replace(WORKLOAD, recompute="full")},
        "first layers again": {
            "workload": replace(WORKLOAD, recompute="full", recompute_layers=3)
        },
        "modules again": {
            "workload": replace(
                WORKLOAD, recompute="selective", recompute_modules=("layernorm", "mlp")
            ),
        },
        "moments in BF16": {
            "workload": replace(
                WORKLOAD, data_parallel="distributed-optimizer", moments_dtype="bf16"
            ),
            "cluster": ClusterSpec(tp=4, dp=4),
        },
        "experts, two micro-batches": {
            "model": MODELS["qwen3-30b-a3b"], "plan": replace(MEGATRON, strategy="ep-overlap"),
            "workload": replace(
                WORKLOAD, grad_accumulation=4, data_parallel="distributed-optimizer",
                recompute="selective",
                recompute_modules=("moe_act", "layernorm"),
            ),
            "cluster": ClusterSpec(tp=1, dp=8, ep=8),
        },
        "CUDA graph": {"cluster": ClusterSpec(tp=8, cuda_graph=True)},
        "userbuffers": {"plan": USERBUFFERS},
        "userbuffers, GPT": {
            "plan": USERBUFFERS, "model": MODELS["gpt3-13b"], "workload": SHORT,
        },
        "userbuffers, own methods": {
            "plan": told(
                USERBUFFERS, "fc2_fprop=pipeline:8:24", "proj_fprop=none", "fc1_dgrad=bulk:8",
                "fc1_fprop=none",
            ),
        },
        "userbuffers, dgrads in pipelines": {
            "plan": told(
                USERBUFFERS, "fc1_dgrad=pipeline:2:8", "qkv_dgrad=pipeline", "qkv_fprop=none",
                "fc1_fprop=none", "proj_dgrad=none", "fc2_dgrad=none",
            ),
        },
        "userbuffers, no backward": {
            "plan": told(USERBUFFERS, "fc1_dgrad=none", "qkv_dgrad=none"),
        },
        "async-tp": {"plan": ASYNC_TP, "workload": on("torch")},
        "two slices": {"plan": TWO_SLICES, "model": NARROW, "workload": SHORT},
        "two slices, intra": {
            "plan": replace(TWO_SLICES, order="intra", wgrad="eager"),
            "model": replace(NARROW, position_embedding="rope"),
            "workload": replace(SHORT, dtype="fp16"),
        },
    }
)  # fmt: skip


def exports(to: str) -> dict[str, ExportResult]:
    """Return the exports by case, for those cases that framework ``to`` can run."""
    made = {}
    for name, case in CASES.items():
        try:
            made[name] = export_plan(plan_file(**{"plan": SHARDED, **case}), to)
        except InfeasiblePlanError as refused:
            if refused.reason != "target":
                raise
    return made
