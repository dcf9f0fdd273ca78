"""GPT-2's fused c_attn as three parameters: torch can describe a shard of each, but not of all
three, because a rank's columns of q, k and v are not adjacent in c_attn."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from domino_tune.runtime.huggingface.families import Family, replace_at

PARTS: Final = ("q", "k", "v")


def split_fused(model: nn.Module, family: Family) -> None:
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


def joined_fused(tensors: dict[str, torch.Tensor], family: Family) -> dict[str, torch.Tensor]:
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


def split_whole(tensors: dict[str, torch.Tensor], family: Family) -> None:
    """Replace the fused tensors of ``tensors``, named as in ``transformers``, by their thirds."""
    for name in [name for name in tensors if family.fused and f".{family.fused}." in name]:
        path, _, leaf = name.rpartition(".")
        if path.endswith(family.fused):
            thirds = tensors.pop(name).chunk(len(PARTS), dim=-1)
            tensors |= zip([f"{path}.{part}.{leaf}" for part in PARTS], thirds, strict=True)
