"""Refusals with a reason: models of ``transformers``, and arguments, that no plan plays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from domino_tune.runtime.huggingface.refusals import Doubts
from domino_tune.runtime.huggingface.weights import FAMILIES, LINEARS, NORMS, ModelPaths
from domino_tune.runtime.launch_spec import QUEUES_SETTING
from domino_tune.store.formats.hf_config import from_hf_config
from simulator.errors import InputError, unknown_name
from simulator.specs import ClusterSpec, ModelSpec

GELU_BY_TANH: Final = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of configs for the number of experts."""
UNPLAYED_OPTIONS: Final = (
    "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention",
)  # fmt: skip
"""Options of GPT-2 that change what attention computes."""
NOT_PLAYED: Final[dict[str, str]] = {
    "past_key_values": "a cache of keys and values; save the model, load it, and generate there",
    "output_hidden_states": "the states between layers, which a plan never holds whole",
    "output_attentions": "attention weights, which fused attention never has",
    "encoder_hidden_states": "cross attention",
}
"""Arguments of forward -> what is not played."""
NOT_CAUSAL: Final = (
    "The attention mask is not causal alone: padding and packed sequences are not played. Give "
    "sequences of equal length without a mask; labels of -100 leave tokens out of the loss."
)
PADDED: Final = (
    "The attention mask leaves tokens out: padding is not played. Give sequences of equal length; "
    "labels of -100 leave tokens out of the loss."
)
PACKED: Final = "position_ids do not count from 0: packed sequences are not played. Leave them out."
SHAPE: Final = tuple(
    item.name
    for item in fields(ModelSpec)
    if item.name not in ("name", "max_position_embeddings", "hidden_dropout", "attention_dropout")
)


def family_of(model: nn.Module, *, may_be_empty: bool = False) -> tuple[ModelPaths, ModelSpec]:
    """Return where the model's parts are, and its shape; ``may_be_empty``: without weights.

    Raise InputError, with what to do, for models that no plan plays.
    """
    if hasattr(model, "peft_config"):
        raise InputError(
            "The model has adapters (PEFT), which plans do not play. Merge them into the model "
            "first (merge_and_unload), or train without a plan."
        )
    config = getattr(model, "config", None)
    if config is None and isinstance(getattr(model, "module", None), nn.Module):
        raise InputError(
            f"The model is wrapped by {type(model).__name__}; give apply the model itself, and "
            "leave the wrapper out: gradients are averaged over replicas already."
        )
    if any(getattr(config, name, None) for name in EXPERTS):
        raise InputError(
            f"{type(model).__name__} has experts (a mixture of experts), which plans do not play."
        )
    kind = getattr(config, "model_type", "")
    if config is None or kind not in FAMILIES:
        raise unknown_name("model_type of a model to apply a plan to", str(kind), FAMILIES)
    if not hasattr(model, "lm_head"):
        raise InputError(
            f"apply needs a causal language model with its head (…ForCausalLM, GPT2LMHeadModel), "
            f"got {type(model).__name__}."
        )
    _check_options(config)
    spec = from_hf_config(config.to_dict(), name=kind).spec
    if spec.attention_dropout:
        raise InputError(
            f"The model has attention dropout {spec.attention_dropout:g}, whose masks slicing "
            "would change; make it with attention_dropout=0.0 (GPT-2: attn_pdrop=0.0)."
        )
    if spec.gated_mlp and spec.hidden_act != "silu":
        raise InputError(
            f"The model's hidden_act is {config.hidden_act!r}; gated MLPs are played with SiLU "
            "alone (silu, swish)."
        )
    if set(spec.extras) - {"qk_norm"}:
        raise InputError(f"Plans are not played in models with {', '.join(spec.extras)}.")
    _check_modules(model, FAMILIES[kind], may_be_empty=may_be_empty)
    return FAMILIES[kind], spec


def check_same_model(spec: ModelSpec, planned: ModelSpec) -> None:
    """Raise InputError unless the plan was made for a model of this shape."""
    differing = [name for name in SHAPE if getattr(spec, name) != getattr(planned, name)]
    if differing:
        shown = "; ".join(
            f"{name} is {getattr(spec, name)!r} here, {getattr(planned, name)!r} in the plan"
            for name in differing[:3]
        )
        raise InputError(
            f"The plan was made for another model: {shown}. Save the model's config.json and make "
            "a plan for it: domino-tune tune --model config.json …"
        )


def tell_what_is_left_out(cluster: ClusterSpec) -> None:
    """Warn of settings that the plan was made with and the user's loop lacks."""
    if cluster.cuda_graph:
        warnings.warn(
            "The plan was made with CUDA graphs, and apply launches each op: steps take longer "
            "than predicted. Make a plan without --cuda-graph, or capture the whole step yourself.",
            stacklevel=3,
        )


def check_device(device: torch.device, current: int, queues: str) -> None:
    """Raise InputError if kernels would be launched on a GPU other than the model's. Warn unless
    CUDA has one hardware queue (``queues``): with more, a collective may start after the op issued
    after it."""
    if device.index != current:
        raise InputError(
            f"The model is on {device}, and this process launches on cuda:{current}; call "
            f"torch.cuda.set_device({device.index}) before the model is made."
        )
    if queues != "1":
        warnings.warn(
            f"{QUEUES_SETTING} is {queues or 'not set'}: plans are predicted with one queue, in "
            f"which a collective starts before the op behind it. Export {QUEUES_SETTING}=1 before "
            "the process starts.",
            stacklevel=3,
        )


def as_played(spec: ModelSpec, planned: ModelSpec) -> ModelSpec:
    """Return the planned model with the dropout of this one."""
    positions = max(spec.max_position_embeddings, planned.max_position_embeddings)
    return replace(
        planned, hidden_dropout=spec.hidden_dropout, attention_dropout=0.0,
        max_position_embeddings=positions,
    )  # fmt: skip


def check_call(
    model: ModelSpec, hidden: torch.Tensor, mask: torch.Tensor | None, cache: object,
    doubts: Doubts,
) -> None:  # fmt: skip
    """Raise InputError for inputs of the stack that a plan does not play; what only the device
    knows, ``doubts`` tell."""
    if cache is not None:
        raise InputError(f"A plan does not play {NOT_PLAYED['past_key_values']}.")
    length = hidden.shape[1]
    if 0 < model.sliding_window < length:
        raise InputError(
            f"The model attends to {model.sliding_window} tokens and got sequences of {length}; "
            "attention in a window is not played. Give shorter sequences."
        )
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise InputError(
            f"The model's attention makes a {type(mask).__name__} of its mask (flex_attention); "
            "call model.set_attn_implementation('sdpa'): the plan's attention is causal either way."
        )
    if mask is not None:
        doubts.require(_is_causal(mask, length), NOT_CAUSAL)


def check_anomaly(*, cut: bool) -> None:
    """Raise InputError where torch would look for NaN in gradients that are ``cut`` over ranks."""
    if cut and torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise InputError(
            "torch cannot look for NaN in gradients that are cut over ranks: call "
            "set_detect_anomaly(True, check_nan=False), which still shows where an error began."
        )


def check_arguments(
    module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], *, doubts: Doubts
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the model's forward, without a cache.

    Raise InputError for those that a plan does not play, or that the micro-batch before had; what
    only the device knows, ``doubts`` tell.
    """
    doubts.settle()
    for name, what in NOT_PLAYED.items():
        given = named.get(name)
        if given is None:  # then transformers takes it from the config
            given = getattr(module.config, name, None)
        if given is not None and given is not False:
            raise InputError(
                f"A model that plays a plan got {name}, as an argument or in its config: it does "
                f"not play {what}."
            )
    if named.get("use_cache"):
        raise InputError(
            f"A model that plays a plan got use_cache=True (as generate does): it does not play "
            f"{NOT_PLAYED['past_key_values']}."
        )
    mask, positions = named.get("attention_mask"), named.get("position_ids")
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        doubts.require(mask.bool().all(), PADDED)
    if isinstance(positions, torch.Tensor):
        usual = torch.arange(positions.shape[-1], device=positions.device)
        doubts.require((positions == usual).all(), PACKED)
    return arguments, {**named, "use_cache": False}


def _is_causal(mask: torch.Tensor, length: int) -> torch.Tensor:
    """Return whether a mask of [length, length] allows what causal attention does, as one truth."""
    if mask.shape[-2:] != (length, length):
        return torch.tensor(False)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    usual = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    return (allowed == usual).all()


def _check_options(config: Any) -> None:
    for name in UNPLAYED_OPTIONS:
        if getattr(config, name, False):
            raise InputError(f"The model's config has {name}, which plans do not play.")
    if not getattr(config, "scale_attn_weights", True):
        raise InputError("The model's config has scale_attn_weights off, which plans do not play.")
    activation = getattr(config, "activation_function", "gelu_new")
    if activation not in GELU_BY_TANH:
        raise InputError(
            f"The model's activation is {activation!r}; of GPT-2, plans play GeLU by tanh: "
            f"{', '.join(GELU_BY_TANH)}."
        )


def _check_modules(model: nn.Module, family: ModelPaths, *, may_be_empty: bool) -> None:
    """Raise InputError for layers that hold other modules than their family's own."""
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise InputError(
            "The model has activation (gradient) checkpointing on; call "
            "activation_checkpointing_disable(). A plan recomputes by its own --recompute."
        )
    paths = {path for modules in family.modules.values() for path in modules}
    paths |= {family.fused} if family.fused else set()
    if hasattr(model.get_submodule(family.stack), "player"):
        raise InputError("The model plays a plan already; load it again to apply another one.")
    for layer in model.get_submodule(family.stack).children():
        for path, module in layer.named_modules():
            kind = type(module).__name__
            adapted = hasattr(module, "base_layer")  # PEFT's class is called Linear, too
            if path in paths and (adapted or kind not in (*LINEARS, *NORMS)):
                raise InputError(
                    f"The model's {path} is a {kind}: adapters (PEFT), quantized layers and "
                    "experts are not played. Merge them into the model first, or train without a "
                    "plan."
                )
            own = [name for name, _ in module.named_parameters(recurse=False)]
            if own and path not in paths:
                raise InputError(
                    f"The model's {path} ({kind}) has parameters ({', '.join(own)}) that no plan "
                    "plays."
                )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(
                f"{name} is distributed already; give apply the whole model, loaded without "
                "tp_plan and not wrapped by FSDP or DDP."
            )
        if parameter.is_meta and not may_be_empty:
            raise InputError(
                f"{name} is on the meta device; give apply a model with its weights, or the folder "
                "of its safetensors: apply(model, plan, weights=folder)."
            )
    kinds = {parameter.dtype for parameter in model.parameters()}
    if len(kinds) > 1:
        raise InputError(f"The model's parameters have several dtypes, {kinds}; give it one.")
