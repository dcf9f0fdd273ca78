"""Whole weights of the user's model: where families keep them, how they are read and saved.

A model of 70 billion parameters fits no GPU whole, and eight copies fit no host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from domino_tune.runtime.huggingface.refusals import InParts, NotCopied
from simulator.errors import InputError

# Where the models of transformers keep what the runtime plays, family by family -------------------


@dataclass(frozen=True, kw_only=True)
class ModelPaths:
    """Paths inside a model: the stack of layers, the embeddings, the norm after the stack.

    ``modules`` maps a weight of the runtime's layers (``attn.qkv``) to the modules, inside a layer,
    whose weights' rows follow each other in it. ``transposed``: linears are GPT-2's Conv1D, whose
    weights are [inputs, outputs]. ``fused``: the linear inside a layer that makes q, k and v at
    once. ``embedding_dropout``: the path of the dropout in front of the stack.
    """

    stack: str
    embedding: str
    replicated: tuple[str, ...]
    modules: Mapping[str, tuple[str, ...]]
    transposed: bool = False
    fused: str = ""
    embedding_dropout: str = ""


_NORMS: Final = {"attn.norm": ("input_layernorm",), "mlp.norm": ("post_attention_layernorm",)}
_LLAMA: Final = ModelPaths(
    stack="model.layers",
    embedding="model.embed_tokens",
    replicated=("model.norm",),
    modules={
        **_NORMS,
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",),
        "attn.qk_norm": ("self_attn.q_norm", "self_attn.k_norm"),
        "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.fc2": ("mlp.down_proj",),
    },
)
FAMILIES: Final[dict[str, ModelPaths]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    "gpt2": ModelPaths(
        stack="transformer.h",
        embedding="transformer.wte",
        replicated=("transformer.wpe", "transformer.ln_f"),
        modules={
            "attn.norm": ("ln_1",),
            "attn.qkv": ("attn.c_attn.q", "attn.c_attn.k", "attn.c_attn.v"),
            "attn.proj": ("attn.c_proj",),
            "mlp.norm": ("ln_2",),
            "mlp.fc1": ("mlp.c_fc",),
            "mlp.fc2": ("mlp.c_proj",),
        },
        transposed=True,
        fused="attn.c_attn",
        embedding_dropout="transformer.drop",
    ),
}
"""``model_type`` -> where its parts are."""
LINEARS: Final = ("Linear", "Conv1D")
NORMS: Final = (
    "LayerNorm", "LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """A parameter of the model inside a tensor of the runtime's.

    ``weight``: the runtime's name; ``part`` and ``parts``: which of the modules it is of.
    """

    name: str
    weight: str
    part: int
    parts: int
    parameter: nn.Parameter = field(repr=False)


def places(family: ModelPaths, model: nn.Module) -> list[Place]:
    """Return the parameters of the stack, layer by layer."""
    found = []
    for number, layer in enumerate(model.get_submodule(family.stack).children()):
        inside = dict(layer.named_modules(remove_duplicate=False))
        for weight, modules in family.modules.items():
            for part, path in enumerate(modules):
                if path not in inside:
                    continue
                for name, parameter in inside[path].named_parameters(recurse=False):
                    suffix = ".bias" if name == "bias" else ""
                    found.append(
                        Place(
                            name=f"{family.stack}.{number}.{path}.{name}",
                            weight=f"l{number}.w.{weight}{suffix}",
                            part=part,
                            parts=len(modules),
                            parameter=parameter,
                        )
                    )
    return found


def replace_at(model: nn.Module, path: str, part: object) -> None:
    """Replace the module or parameter at ``path``."""
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, part)


# GPT-2's fused c_attn as three parameters ---------------------------------------------------------
# Torch can describe a shard of each, but not of all three, because a rank's columns of q, k and v
# are not adjacent in c_attn.

PARTS: Final = ("q", "k", "v")


def split_fused(model: nn.Module, family: ModelPaths) -> None:
    """Replace ``family.fused`` of each layer by modules q, k and v that hold its thirds."""
    if not family.fused:
        return
    for layer in model.get_submodule(family.stack).children():
        fused, split = layer.get_submodule(family.fused), nn.Module()
        for part in PARTS:
            split.add_module(part, nn.Module())
        for name, parameter in fused.named_parameters(recurse=False):
            thirds = parameter.detach().chunk(len(PARTS), dim=-1)
            for part, third in zip(PARTS, thirds, strict=True):
                held = nn.Parameter(third.clone(), requires_grad=parameter.requires_grad)
                split.get_submodule(part).register_parameter(name, held)
        replace_at(layer, family.fused, split)


def joined_fused(tensors: dict[str, torch.Tensor], family: ModelPaths) -> dict[str, torch.Tensor]:
    """Return ``tensors`` of whole parameters by name, with q, k and v joined again."""
    found: dict[str, torch.Tensor] = {}
    thirds: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner, _, part = path.rpartition(".")
        if family.fused and owner.endswith(f".{family.fused}") and part in PARTS:
            thirds.setdefault(f"{owner}.{leaf}", []).append(tensor)
            found.setdefault(f"{owner}.{leaf}", tensor)
        else:
            found[name] = tensor
    return {name: torch.cat(thirds[name], dim=-1) if name in thirds else tensor
            for name, tensor in found.items()}  # fmt: skip


def split_whole(tensors: dict[str, torch.Tensor], family: ModelPaths) -> None:
    """Replace the fused tensors of ``tensors``, named as in ``transformers``, by their thirds."""
    for name in [name for name in tensors if family.fused and f".{family.fused}." in name]:
        path, _, leaf = name.rpartition(".")
        if path.endswith(family.fused):
            thirds = tensors.pop(name).chunk(len(PARTS), dim=-1)
            tensors |= zip([f"{path}.{part}.{leaf}" for part in PARTS], thirds, strict=True)


# Weights of a model that is made without them -----------------------------------------------------
# Each rank reads its part of a checkpoint's files.

INDEX: Final = "model.safetensors.index.json"
ONE_FILE: Final = "model.safetensors"


class Weights:
    """Whole parameters by name: the model's own, or, where those are on the meta device, those of
    the safetensors files in ``folder``, one at a time and on the CPU."""

    def __init__(self, family: ModelPaths, folder: str | Path | None) -> None:
        self.family = family
        self.folder = Path(folder) if folder is not None else None
        self._files: dict[str, Any] = {}
        self._file_of = self._index()

    def whole(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """Return the whole tensor of a parameter; one that is read has the parameter's dtype."""
        if not parameter.is_meta:
            return parameter.detach()
        held = self._fused_name(name)
        if held not in self._file_of:
            raise InputError(f"{self.folder} has no {held}, which the model has.")
        found = {held: self._open(self._file_of[held]).get_tensor(held)}
        if held != name:
            split_whole(found, self.family)
        if found[name].shape != parameter.shape:
            raise InputError(
                f"{name} is {list(found[name].shape)} in {self.folder}, and "
                f"{list(parameter.shape)} in the model."
            )
        tensor: torch.Tensor = found[name].to(parameter.dtype)
        return tensor

    def _fused_name(self, name: str) -> str:
        fused = self.family.fused
        path, _, part_and_leaf = name.partition(f".{fused}.") if fused else (name, "", "")
        return f"{path}.{fused}.{part_and_leaf.rpartition('.')[2]}" if part_and_leaf else name

    def _index(self) -> dict[str, Path]:
        if self.folder is None:
            return {}
        if (self.folder / INDEX).exists():
            held = json.loads((self.folder / INDEX).read_text())["weight_map"]
            return {name: self.folder / file for name, file in held.items()}
        if not (self.folder / ONE_FILE).exists():
            raise InputError(f"{self.folder} has neither {ONE_FILE} nor {INDEX}.")
        return dict.fromkeys(self._open(self.folder / ONE_FILE).keys(), self.folder / ONE_FILE)

    def _open(self, file: Path) -> Any:
        """Return a file of weights, which is mapped: of one that is cut, its part is read."""
        if file.name not in self._files:
            from safetensors import safe_open

            self._files[file.name] = safe_open(file, framework="pt")
        return self._files[file.name]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's weights; of one without them, that of this process's
    collectives."""
    first = next(model.parameters())
    if not first.is_meta:
        return first.device
    on_gpu = dist.is_initialized() and "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def materialise(
    model: nn.Module, family: ModelPaths, weights: Weights, device: torch.device
) -> None:
    """Move buffers to ``device``, and read what is still without weights: embeddings, norms, head.
    Raise InputError for buffers without values."""
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                raise InputError(
                    f"{path}.{name} is a buffer on the meta device, and no file has it; make the "
                    "model with its buffers: with accelerate.init_empty_weights(): …from_config(…)."
                )
            module._buffers[name] = buffer.to(device)
    inside = f"{family.stack}."
    made: dict[int, nn.Parameter] = {}
    for name, old in list(model.named_parameters(remove_duplicate=False)):
        if not old.is_meta or name.startswith(inside):
            continue
        if id(old) not in made:
            whole = weights.whole(name, old).to(device)
            made[id(old)] = nn.Parameter(whole, requires_grad=old.requires_grad)
        replace_at(model, name, made[id(old)])


class ModelState(InParts):
    """The state of a model in parts."""

    refusal = (
        "This rank has its part of the weights only. Save them whole with "
        "model.save_pretrained(folder) on all ranks, or in parts with torch.distributed.checkpoint."
    )


def whole_state_dict(model: nn.Module, family: ModelPaths) -> dict[str, torch.Tensor]:
    """Return the whole state on the CPU of rank 0, and {} on the others; all ranks must call.

    Tied weights are one tensor under both names.
    """
    main = _is_main()
    found: dict[str, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            whole = tensor.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            seen[id(tensor)] = whole.contiguous().cpu() if main else whole[:0]
        if main:
            found[name] = seen[id(tensor)]
    return joined_fused(found, family)


def _is_main() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


class Saving:
    """``save_pretrained`` of a model whose weights are cut over ``tp`` ranks."""

    def __init__(self, model: nn.Module, family: ModelPaths, tp: int) -> None:
        self.model = model
        self.family = family
        self.tp = tp
        self.all_ranks_call = True
        """False: ``is_main_process`` tells on which rank alone it is called, as Trainer does."""

    def __call__(self, save_directory: str | Path, **options: Any) -> None:
        """Save config and whole weights (safetensors) as ``transformers`` does; all ranks must call
        where weights are cut."""
        if options.pop("state_dict", None) is not None:
            raise InputError(
                "save_pretrained gathers the whole weights itself; leave state_dict out."
            )
        alone = "is_main_process" in options and self.all_ranks_call
        if alone and self.tp > 1:
            raise InputError(
                "transformers' Trainer saves on one rank, and each has its part of the weights. "
                "Train with PlanTrainer (domino_tune.runtime.huggingface.trainer), which gathers "
                "them; in your own loop, call save_pretrained on all ranks, without "
                "is_main_process."
            )
        state = whole_state_dict(self.model, self.family)
        if _is_main() and options.get("is_main_process", True):
            save: Any = type(self.model)
            save.save_pretrained(self.model, save_directory, state_dict=state, **options)
        if dist.is_initialized() and not alone:
            dist.barrier()


class Loading(NotCopied):
    """Lets ``load_state_dict`` take whole weights: cuts them as the model's are."""

    def __init__(self, family: ModelPaths) -> None:
        self.family = family

    def __call__(self, model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Replace whole tensors of ``state`` by DTensors."""
        held = dict(model.named_parameters(remove_duplicate=False))
        split_whole(state, self.family)
        for name, parameter in held.items():
            given = state.get(prefix + name)
            if (
                isinstance(parameter, DTensor)
                and given is not None
                and given.shape == (parameter.shape)
                and not isinstance(given, DTensor)
            ):
                state[prefix + name] = distribute_tensor(
                    given.to(parameter.device), parameter.device_mesh, parameter.placements,
                    src_data_rank=None,
                )  # fmt: skip
