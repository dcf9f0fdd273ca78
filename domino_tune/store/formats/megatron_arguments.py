"""Arguments of Megatron-LM, 2021 to 2026, and of its forks: those that price a log's run, those
that do not matter, those that are refused, and the defaults of the others, which are reported if
they differ.

Names are as printed (megatron/training/arguments.py). A name may end with ``*``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Final

from domino_tune.store.formats.megatron_options import DISPATCHERS
from simulator.errors import InputError

LONGEST_VALUE: Final = 40
"""Most characters of a value that a message shows."""
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
"""Argument -> field of a model, to be set on the preset of the nearest kind."""
NEEDED: Final = (*SAME, "world_size", "global_batch_size", *SHAPE)
MORE_SHAPE: Final = {
    "kv_channels": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
"""The same for arguments that some versions do not print."""
KINDS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "normalization": {"layernorm": {"norm": "layernorm"}, "rmsnorm": {"norm": "rmsnorm"}},
    "position_embedding_type": {
        "learned_absolute": {"position_embedding": "learned"},
        "absolute": {"position_embedding": "learned"},
        "rope": {"position_embedding": "rope"},
        "yarn": {"position_embedding": "rope"},
        "rotary": {"position_embedding": "rope"},
        "none": {"position_embedding": "none"},
    },
    "use_rotary_position_embeddings": {"true": {"position_embedding": "rope"}, "false": {}},
    "untie_embeddings_and_output_weights": {
        "true": {"tie_word_embeddings": "false"}, "false": {"tie_word_embeddings": "true"},
    },
    "qk_layernorm": {"true": {"qk_norm": "true"}, "false": {"qk_norm": "false"}},
    "add_bias_linear": {
        "true": {"attention_bias": "true", "proj_bias": "true", "mlp_bias": "true"},
        "false": {"attention_bias": "false", "mlp_bias": "false"},
    },
    "add_qkv_bias": {"true": {"attention_bias": "true"}, "false": {}},
}  # fmt: skip
"""Argument -> its value, in small letters -> fields of a model; other values are refused. A bias of
qkv alone overrides other arguments on biases.
"""
SWITCHES: Final = {
    "sequence_parallel": "sequence_parallel",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}
"""Argument that is True or False -> option of simulate; False if it is not printed."""
KERNELS: Final = {
    "apply_rope_fusion": "rope_fusion",
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
FUSED_ROWS: Final = "moe_permute_fusion"
"""Argument and key of experts' permutation in one kernel; versions that do not print it have
none."""
FUSED_LOSS: Final = "cross_entropy_loss_fusion"
"""Argument and key of a loss in one kernel; versions that do not print it have none."""
FUSED_LOSS_BY: Final = "cross_entropy_fusion_impl"
"""Argument of who fuses it: TransformerEngine (te), or Megatron-LM itself (native), by compiling
the passes of its own loss, which keep their copy of the logits in fp32."""
FLASH: Final = (
    "use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton",
    "use_flash_attn_builder",
)  # fmt: skip
"""Arguments that give layers without TransformerEngine flash attention."""
FSDP: Final = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
GRAPHS: Final = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl", "cuda_graph_scope")
AWARE: Final = "use_precision_aware_optimizer"
MOMENTS: Final = ("exp_avg_dtype", "exp_avg_sq_dtype")
"""Arguments of the optimizer whose moments have a dtype."""
RECOMPUTATION: Final = (
    "recompute_granularity", "recompute_method", "recompute_modules", "checkpoint_activations",
    "activations_checkpoint_method", "activations_checkpoint_granularity",
    "activations_checkpoint_num_layers",
)  # fmt: skip
_TOLD: Final[dict[str, Any]] = tomllib.loads(
    resources.files(__package__).joinpath("megatron_arguments.toml").read_text("utf-8")
)
PRICED: Final = frozenset(
    {
        *_TOLD["priced"], *_TOLD["of_experts"], *NEEDED, *MORE_SHAPE, *KINDS, *SWITCHES, *KERNELS,
        *FLASH, *FSDP, *GRAPHS, *RECOMPUTATION, *MOMENTS, FUSED_LOSS_BY, FUSED_ROWS,
    }
)  # fmt: skip
"""Arguments that price a run."""
DOES_NOT_MATTER: Final[Mapping[str, list[str]]] = _TOLD["does_not_matter"]
"""Reason -> the arguments that for this reason change neither time nor memory of an iteration."""
REFUSED: Final[Mapping[str, list[str]]] = {
    name: one["values"] for one in _TOLD["refused"] for name in one["arguments"]
}
"""Argument -> the only values with which a run can be read."""
DEFAULTS: Final[Mapping[str, list[str]]] = _TOLD["defaults"]
"""Argument that is neither priced nor irrelevant -> its default, and values that cost the same."""
OFFLOAD: Final = "offload"
"""Part of the names of all arguments that move tensors to the host, which is refused, too."""

NOTHING: Final = ("None", "False", "", "[]", "{}", "0", "0.0", "none")
"""Values of arguments that are not set."""


def not_simulated(source: str, name: str, value: str) -> InputError:
    """Return the error of an argument whose value is not simulated."""
    return InputError(
        f"{source} is of a run with {name} = {value[:LONGEST_VALUE]}, which is not simulated; "
        "leave it out."
    )


def is_usual(name: str, value: str) -> bool:
    """Return whether an argument needs no mention: it is priced, does not matter, or has its
    default."""
    if name in PRICED or name in REFUSED:
        return True
    if name in DEFAULTS:
        return value in (*DEFAULTS[name], "None", "")
    return value in NOTHING or _does_not_matter(name)


@cache
def _does_not_matter(name: str) -> bool:
    named = (one for names in DOES_NOT_MATTER.values() for one in names)
    return any(fnmatchcase(name, one) for one in named)


# Megatron log experts -----------------------------------------------------------------------------
# Experts, latent attention and multi-token prediction in the arguments of a Megatron-LM log.

_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_NONE: Final = ("None", "0", "", "[1]")
EXPERTS: Final = {
    "num_experts": "num_experts",
    "moe_router_topk": "num_experts_per_tok",
    "moe_ffn_hidden_size": "moe_intermediate_size",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
}
"""Argument -> field of a model with experts."""
LATENT: Final = {
    "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_pos_emb_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim",
}  # fmt: skip
"""The same of latent attention."""


def has_experts(arguments: Mapping[str, str]) -> bool:
    """Return whether the run had experts."""
    return arguments.get("num_experts", "None") not in _NONE


def expert_fields(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the fields of a model that these arguments give, by name. Raise InputError for layers
    that are not simulated."""
    found: dict[str, str] = {}
    if has_experts(arguments):
        if not _WHOLE.fullmatch(arguments["num_experts"]):
            raise not_simulated(source, "num_experts", arguments["num_experts"])
        if arguments.get("moe_grouped_gemm", "True") != "True":
            raise not_simulated(source, "moe_grouped_gemm", arguments["moe_grouped_gemm"])
        if "moe_router_topk" not in arguments:  # SwitchMLP: one expert a token, one after another
            raise not_simulated(source, "num_experts", f"{arguments['num_experts']} (top 1)")
        usual = {"moe_ffn_hidden_size": arguments["ffn_hidden_size"]}
        found |= _given({**usual, **_told(arguments, EXPERTS)}, EXPERTS)
        found["first_k_dense_replace"] = str(_first_dense(arguments, source))
    if arguments.get("multi_latent_attention") == "True":
        found |= _given(_told(arguments, LATENT), LATENT)
        parts = [arguments.get(name, "") for name in ("qk_head_dim", "qk_pos_emb_head_dim")]
        for name, part in zip(("qk_head_dim", "qk_pos_emb_head_dim"), parts, strict=True):
            if not _WHOLE.fullmatch(part):
                raise not_simulated(source, name, part or "None")
        found |= {
            "head_dim": str(sum(map(int, parts))), "qk_norm": "false",
            "num_key_value_heads": arguments["num_attention_heads"],
        }  # fmt: skip
    further = arguments.get("mtp_num_layers", "None")
    return found if further in _NONE else {**found, "num_nextn_predict_layers": further}


def expert_options(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options of simulate on ranks of experts. Raise InputError for a dispatcher that is
    not simulated."""
    if not has_experts(arguments):
        return {}
    kind = arguments.get("moe_token_dispatcher_type", "allgather")
    backend = arguments.get("moe_flex_dispatcher_backend", "deepep") if kind == "flex" else ""
    if (kind, backend) not in DISPATCHERS:
        raise not_simulated(source, "moe_token_dispatcher_type", f"{kind} {backend}".strip())
    found = {"moe_dispatcher": DISPATCHERS[kind, backend]}
    if backend and (sms := arguments.get(f"moe_{backend}_num_sms")):
        found["moe_dispatcher_sms"] = sms
    for name, option in (
        ("expert_model_parallel_size", "ep"), ("expert_tensor_parallel_size", "etp")
    ):  # fmt: skip
        if arguments.get(name, "None") != "None":
            found[option] = arguments[name]
    shared = arguments.get("moe_shared_expert_intermediate_size", "None") not in _NONE
    if shared and arguments.get("moe_shared_expert_overlap") == "True":
        found["moe_shared_expert_overlap"] = "true"
    return found


def expert_note(arguments: Mapping[str, str], source: str) -> str:
    """Return a note on tokens that may not have been balanced, or an empty text."""
    forced = arguments.get("moe_router_force_load_balancing") == "True"
    if forced or not has_experts(arguments):
        return ""
    return (
        f"{source}: tokens are taken to be balanced among experts, which this run did not force; "
        "if they were not, give the run as a row of --runs with moe_imbalance."
    )


def _told(arguments: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {name: arguments[name] for name in names if arguments.get(name, "None") != "None"}


def _given(values: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    return {fields[name]: value for name, value in values.items()}


def _first_dense(arguments: Mapping[str, str], source: str) -> int:
    """Return how many first layers are dense, of ``1`` or of a list like ``[0, 0, 1, 1]``."""
    told = arguments.get("moe_layer_freq", "1")
    if told == "1":
        return 0
    listed = re.fullmatch(r"\[((?:0, ?)*)((?:1, ?)*1)\]", told)
    if listed is None:
        raise not_simulated(source, "moe_layer_freq", told)
    return listed[1].count("0")
