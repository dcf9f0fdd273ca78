"""Experts, latent attention and multi-token prediction in the arguments of a Megatron-LM log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from domino_tune.store.formats.megatron_arguments import not_simulated
from domino_tune.store.formats.megatron_experts import DISPATCHERS

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
    that are not simulated.
    """
    found: dict[str, str] = {}
    if has_experts(arguments):
        if not _WHOLE.fullmatch(arguments["num_experts"]):
            raise not_simulated(source, "num_experts", arguments["num_experts"])
        if arguments.get("moe_grouped_gemm", "True") != "True":
            raise not_simulated(source, "moe_grouped_gemm", arguments["moe_grouped_gemm"])
        usual = {"moe_ffn_hidden_size": arguments["ffn_hidden_size"], "moe_router_topk": "2"}
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
    not simulated.
    """
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
    return found


def expert_note(arguments: Mapping[str, str], source: str) -> str:
    """Return a note on tokens that may not have been balanced, or an empty text."""
    forced = arguments.get("moe_router_force_load_balancing") == "True"
    if forced or not has_experts(arguments):
        return ""
    return (
        f"{source}: tokens are taken to be balanced among experts, which this run did not force; "
        "--moe-imbalance says otherwise."
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
