"""Logs of Megatron-LM: its arguments and the time of its iterations, as a run.

Megatron-LM prints every argument once, as ``  name ........ value``, later the size to which it
pads the vocabulary, and for each logged iteration ``elapsed time per iteration (ms): 1234.5``
(megatron/training: arguments.py, tokenizer, training.py). Launchers put a rank before each line.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Final

from domino_tune.store.formats.run_table import RunRow, checked_ms
from simulator.errors import InputError
from simulator.specs import CP_COMM

_START: Final = "- arguments -"
_ARGUMENT: Final = re.compile(r"^(?:\[[\w.:-]+\]:|\s*[\w.-]+:)?\s+(\w+) \.{2,} ?(.*)$")
_ELAPSED: Final = re.compile(r"elapsed time per iteration \(ms\): *([0-9]+(?:\.[0-9]+)?)")
_PADDED: Final = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
WARM_UP: Final = 2
"""Logged iterations to leave out: the first ones compile, allocate and warm up."""
VOCABULARY: Final = "padded_vocab_size"
SAME: Final = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "micro_batch_size": "micro_batch_size",
    "seq_length": "seq_length",
}
"""Argument -> option of simulate that means the same."""
SHAPE: Final = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    VOCABULARY: "vocab_size",
}
"""Argument -> field of a model, to be set on the preset that is nearest in kind."""
NEEDED: Final = (*SAME, "world_size", "global_batch_size", *SHAPE)
MORE_SHAPE: Final = {
    "kv_channels": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
"""The same of arguments that some versions do not print."""
KINDS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "normalization": {"LayerNorm": {"norm": "layernorm"}, "RMSNorm": {"norm": "rmsnorm"}},
    "position_embedding_type": {
        "learned_absolute": {"position_embedding": "learned"},
        "rope": {"position_embedding": "rope"},
        "none": {"position_embedding": "none"},
    },
    "untie_embeddings_and_output_weights": {
        "True": {"tie_word_embeddings": "false"}, "False": {"tie_word_embeddings": "true"},
    },
    "qk_layernorm": {"True": {"qk_norm": "true"}, "False": {"qk_norm": "false"}},
    "add_bias_linear": {
        "True": {"attention_bias": "true", "proj_bias": "true", "mlp_bias": "true"},
        "False": {"attention_bias": "false", "mlp_bias": "false"},
    },
    "add_qkv_bias": {"True": {"attention_bias": "true"}},
}  # fmt: skip
"""Argument -> its value -> fields of a model. A bias of qkv alone is the last word on biases."""
SWITCHES: Final = {
    "sequence_parallel": "sequence_parallel",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}
"""Argument that is True or False -> option of simulate; False where it is not printed."""
KERNELS: Final = {
    "bias_dropout_fusion": "bias_dropout_fusion",
    "bias_swiglu_fusion": "swiglu_fusion",
    "check_for_nan_in_loss_and_grad": "check_for_nan_in_grad",
    "cross_entropy_loss_fusion": "cross_entropy_loss_fusion",
    "deterministic_mode": "deterministic_attention",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "log_num_zeros_in_grad": "log_num_zeros_in_grad",
    "log_params_norm": "log_params_norm",
}
"""Argument that is True or False -> key of the implementation."""
FSDP: Final = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
UNUSED: Final = {
    **dict.fromkeys(
        ("num_experts", "mtp_num_layers", "fp8", "fp4", "rampup_batch_size", "window_size",
         "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
         "decoder_last_pipeline_num_layers"), "None",
    ),
    **dict.fromkeys(
        ("multi_latent_attention", "squared_relu", "use_tp_pp_dp_mapping",
         "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), "False",
    ),
}  # fmt: skip
"""Argument -> the only value with which a run can be read."""


def read_megatron_log(text: str, source: str) -> RunRow:
    """Return the run of a log, with the median of its iterations; of several starts, the last.

    Raise InputError where arguments or iterations are missing, or cannot be simulated.
    """
    last = text[max(0, text.rfind(_START)) :]
    found = _ELAPSED.findall(last)
    if not found:
        raise InputError(
            f"{source} has no line with `elapsed time per iteration (ms):`; give the output of "
            "rank 0 and of the last rank, with --log-interval."
        )
    times = [float(one) for one in found]
    median = statistics.median(times[WARM_UP:] or times)
    arguments = _arguments(last)
    padded = _PADDED.findall(last)
    if padded and arguments.get(VOCABULARY, "None") == "None":
        arguments[VOCABULARY] = padded[-1]
    _check(arguments, source)
    return RunRow(source, _options(arguments, source), checked_ms(str(median), source))


def _arguments(text: str) -> dict[str, str]:
    found = (_ARGUMENT.match(line) for line in text.splitlines())
    return {one[1]: one[2].strip() for one in found if one}


def _check(arguments: Mapping[str, str], source: str) -> None:
    """Raise InputError for arguments that are missing or that no simulation has."""
    missing = [name for name in NEEDED if arguments.get(name, "None") == "None"]
    if missing:
        raise InputError(
            f"{source} does not print {', '.join(missing)}; give a log from its beginning, where "
            "Megatron-LM prints its arguments and the size of its padded vocabulary."
        )
    for name, usual in UNUSED.items():
        if arguments.get(name, usual) != usual:
            raise InputError(
                f"{source} is of a run with {name} = {arguments[name]}, which is not simulated; "
                "leave it out."
            )


def _options(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options of simulate that mean the same as the arguments."""

    def whole(name: str, default: str = "") -> int:
        text = arguments.get(name, default)
        if not _WHOLE.fullmatch(text) or not int(text):
            raise InputError(
                f"{source}: {name} must be a whole number above 0, got {text[:40]!r}; correct it."
            )
        return int(text)

    options = {option: str(whole(name)) for name, option in SAME.items()}
    pp, cp = whole("pipeline_model_parallel_size"), whole("context_parallel_size", "1")
    ranks = whole("tensor_model_parallel_size") * pp * cp
    dp = _divided(source, "world_size", whole("world_size"), "tp × pp × cp", ranks)
    step = dp * whole("micro_batch_size")
    micros = _divided(
        source, "global_batch_size", whole("global_batch_size"), "dp × micro_batch_size", step
    )
    options |= {
        "cp": str(cp),
        "dp": str(dp),
        "grad_accumulation": str(micros),
        "model": "llama2-7b" if _is(arguments, "swiglu") else "gpt3-2.7b",
        "overrides": " ".join(f"{name}={value}" for name, value in _model(arguments).items()),
        **{option: str(_is(arguments, name)).lower() for name, option in SWITCHES.items()},
        **_precision(arguments),
        **_recomputation(arguments),
        "data_parallel": _sharing(arguments),
        "strategy": "megatron",
        "implementation": "megatron-te",
        "implementation_set": " ".join(
            f"{key}={arguments[name].lower()}"
            for name, key in KERNELS.items()
            if arguments.get(name) in ("True", "False")
        ),
    }
    if _is(arguments, "tp_comm_overlap") and options["tp"] != "1":
        options["strategy"] = "userbuffers"
    if pp > 1:
        options["overlap_p2p"] = str(_is(arguments, "overlap_p2p_comm")).lower()
        options["vpp"] = str(_virtual_stages(arguments, source, whole, pp))
    if cp > 1:
        options["cp_comm"] = _cp_comm(arguments, source)
    return options


def _divided(source: str, name: str, value: int, by: str, divisor: int) -> int:
    """Return a quotient. Raise InputError where it is not whole."""
    if value % divisor:
        raise InputError(f"{source}: {name} = {value} does not divide by {by} = {divisor}.")
    return value // divisor


def _model(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the model, by name."""
    shape = {field: arguments[name] for name, field in SHAPE.items()}
    for name, field in MORE_SHAPE.items():
        if arguments.get(name, "None") != "None":
            shape[field] = arguments[name]
    for name, values in KINDS.items():
        shape |= values.get(arguments.get(name, ""), {})
    if _is(arguments, "add_qkv_bias") and arguments.get("add_bias_linear") == "False":
        shape["proj_bias"] = "false"
    grouped = _is(arguments, "group_query_attention")
    shape["num_key_value_heads"] = arguments[
        "num_query_groups" if grouped and "num_query_groups" in arguments else "num_attention_heads"
    ]
    return shape


def _precision(arguments: Mapping[str, str]) -> dict[str, str]:
    if not _is(arguments, "bf16"):
        return {"dtype": "fp16" if _is(arguments, "fp16") else "fp32"}
    in_bf16 = arguments.get("accumulate_allreduce_grads_in_fp32") == "False"
    return {"dtype": "bf16", "grad_dtype": "bf16" if in_bf16 else "fp32"}


def _recomputation(arguments: Mapping[str, str]) -> dict[str, str]:
    kind = arguments.get("recompute_granularity", "None")
    if kind not in ("full", "selective"):
        return {"recompute": "none"}
    if kind == "full" and arguments.get("recompute_method") == "block":
        return {"recompute": kind, "recompute_layers": arguments.get("recompute_num_layers", "")}
    return {"recompute": kind}


def _sharing(arguments: Mapping[str, str]) -> str:
    if any(_is(arguments, name) for name in FSDP):
        return "fsdp"
    sharded = _is(arguments, "use_distributed_optimizer")
    return "distributed-optimizer" if sharded else "replicas"


def _virtual_stages(
    arguments: Mapping[str, str], source: str, whole: Callable[[str], int], pp: int
) -> int:
    """Return the virtual stages of a rank; Megatron-LM is told them or the layers of each."""
    for name in ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"):
        if arguments.get(name, "None") != "None":
            return whole(name)
    each = "num_layers_per_virtual_pipeline_stage"
    if arguments.get(each, "None") == "None":
        return 1
    stages = f"pp × {each}"
    return _divided(source, "num_layers", whole("num_layers"), stages, pp * whole(each))


def _cp_comm(arguments: Mapping[str, str], source: str) -> str:
    """Return how ranks share keys and values: printed as ``p2p`` or as ``['p2p']``."""
    told = arguments.get("cp_comm_type", "p2p").strip("[]'\" ")
    if told not in CP_COMM:
        raise InputError(
            f"{source} is of a run with cp_comm_type = {told}, which is not simulated; it may be "
            f"{', '.join(CP_COMM)}."
        )
    return told


def _is(arguments: Mapping[str, str], name: str) -> bool:
    return arguments.get(name) == "True"
