"""Weights of a model that is made without them: each rank reads its part of a checkpoint's files.

A model of 70 billion parameters fits no GPU whole, and eight copies fit no host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from domino_tune.runtime.huggingface.families import Family, replace_at
from domino_tune.runtime.huggingface.fused import split_whole
from simulator.errors import InputError

INDEX: Final = "model.safetensors.index.json"
ONE_FILE: Final = "model.safetensors"


class Weights:
    """Whole parameters by name: the model's own, or, where those are on the meta device, those of
    the safetensors files in ``folder``, one at a time and on the CPU."""

    def __init__(self, family: Family, folder: str | Path | None) -> None:
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


def materialise(model: nn.Module, family: Family, weights: Weights, device: torch.device) -> None:
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
