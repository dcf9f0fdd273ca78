"""Megatron-LM's own parser, as far as exports use it.

Options and their types: megatron/training/arguments.py of NVIDIA/Megatron-LM at 000c4ac24f61. Those
that set fields of megatron-core's configs were compared with the wheel of megatron-core 0.16.1.
"""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any, Final

COMMIT: Final = "000c4ac24f61159c138b0975def722c65245983c"
SWITCHES: Final = (
    "accumulate-allreduce-grads-in-fp32", "add-qkv-bias", "bf16", "cross-entropy-loss-fusion",
    "delay-wgrad-compute",
    "disable-bias-linear", "disable-tp-comm-bulk-dgrad", "disable-tp-comm-bulk-wgrad",
    "disable-tp-comm-overlap-ag", "disable-tp-comm-overlap-rs", "fp16", "grad-reduce-in-bf16",
    "group-query-attention", "log-num-zeros-in-grad", "log-params-norm",
    "moe-grouped-gemm", "moe-permute-fusion", "moe-shared-expert-overlap", "multi-latent-attention",
    "no-bias-dropout-fusion",
    "no-bias-swiglu-fusion", "no-check-for-nan-in-loss-and-grad",
    "no-gradient-accumulation-fusion", "no-overlap-p2p-communication", "no-rope-fusion",
    "overlap-grad-reduce", "overlap-moe-expert-parallel-comm", "overlap-param-gather",
    "qk-layernorm", "sequence-parallel", "swiglu", "te-rng-tracker",
    "tp-comm-overlap", "tp-comm-overlap-rs-dgrad", "untie-embeddings-and-output-weights",
    "use-distributed-optimizer", "use-precision-aware-optimizer", "use-rope-scaling",
    "use-torch-fsdp2",
)  # fmt: skip
WHOLE: Final = (
    "context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size",
    "ffn-hidden-size", "global-batch-size", "hidden-size", "kv-channels", "kv-lora-rank",
    "max-position-embeddings", "micro-batch-size", "moe-deepep-num-sms", "moe-ffn-hidden-size",
    "moe-hybridep-num-sms", "moe-router-topk",
    "moe-shared-expert-intermediate-size", "mtp-num-layers", "num-attention-heads", "num-experts",
    "num-layers", "num-layers-per-virtual-pipeline-stage", "num-query-groups",
    "pipeline-model-parallel-size",
    "q-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "recompute-num-layers", "rotary-base",
    "seq-length", "tensor-model-parallel-size", "v-head-dim",
)  # fmt: skip
REAL: Final = (
    "attention-dropout", "clip-grad", "hidden-dropout", "norm-epsilon", "rope-scaling-factor",
)  # fmt: skip
CHOICES: Final = {
    "attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "cp-comm-type": ("p2p", "a2a", "all_gather", "a2a+p2p"),
    "cross-entropy-fusion-impl": ("native", "te"),
    "cuda-graph-impl": ("none", "local", "transformer_engine"),
    "fp8-format": ("e4m3", "hybrid"),
    "fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    "exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "main-grads-dtype": ("fp32", "bf16"),
    "moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
    "transformer-impl": ("local", "transformer_engine"),
}
GRAPH_SCOPES: Final = (
    "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba",
)  # fmt: skip
"""Several since megatron-core 0.16 (core/transformer/enums.py, CudaGraphScope)."""
TEXTS: Final = ("moe-layer-freq", "tp-comm-overlap-cfg", "pipeline-model-parallel-layout")


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Return the options as Megatron-LM reads them; raise ValueError for unknown ones."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    for kind, names in ((int, WHOLE), (float, REAL), (str, TEXTS)):
        for name in names:
            parser.add_argument(f"--{name}", type=kind)
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument("--recompute-modules", nargs="+")
    parser.add_argument("--cuda-graph-scope", nargs="+", choices=GRAPH_SCOPES)
    words = shlex.split(" ".join(arguments))
    flags = [word for word in words if word.startswith("--")]
    found, rest = parser.parse_known_args(words)
    if rest or len(set(flags)) != len(flags):
        raise ValueError(f"unknown or twice: {rest or flags}")
    checked = {
        name: value
        for name, value in vars(found).items()
        if value is not None and value is not False
    }
    _validate(checked)
    return checked


def _validate(args: dict[str, Any]) -> None:
    """Raise ValueError wherever validate_args of the same file fails."""
    problems = {
        "overlap_param_gather needs the distributed optimizer and overlap_grad_reduce": (
            "overlap_param_gather" in args
            and not {"use_distributed_optimizer", "overlap_grad_reduce"} <= args.keys()
        ),
        "only the precision-aware optimizer, a distributed one, has dtypes": (
            bool({"exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype"} & args.keys())
            and not {"use_precision_aware_optimizer", "use_distributed_optimizer"} <= args.keys()
        ),
        "FSDP2": "use_torch_fsdp2" in args
        and not (
            args["pipeline_model_parallel_size"] == 1
            and "no_gradient_accumulation_fusion" in args
            and "use_distributed_optimizer" not in args
            and "untie_embeddings_and_output_weights" in args
            and "fp16" not in args
        ),
        "tp_comm_overlap needs sequence_parallel": (
            "tp_comm_overlap" in args and "sequence_parallel" not in args
        ),
        "experts over tensor-parallel ranks need sequence parallelism": (
            "num_experts" in args
            and args["tensor_model_parallel_size"] > 1
            and "sequence_parallel" not in args
        ),
        "positions": args["max_position_embeddings"] < args["seq_length"],
        "a graph of an iteration checks no NaN": (
            args.get("cuda_graph_scope") == ["full_iteration"]
            and "no_check_for_nan_in_loss_and_grad" not in args
        ),
        "layout": bool(re.search(r"[^Etm|L]", args.get("pipeline_model_parallel_layout", ""))),
    }
    wrong = [name for name, found in problems.items() if found]
    if wrong:
        raise ValueError(f"refused by Megatron-LM: {wrong}")
