"""Parameters of a stack as this rank's shards, their casts, and the optimizers that step them.

With tensor parallelism a parameter becomes a DTensor over the tensor-parallel ranks, so that torch
knows what it holds: norms, clipping, optimizers and checkpoints then count every element once. Its
local part stays the runtime's own memory, and what an optimizer writes is what the plan reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from domino_tune.runtime.huggingface.refusals import Doubts, InParts, captures
from domino_tune.runtime.huggingface.weights import ModelPaths, Place, Weights, places, replace_at
from domino_tune.runtime.parameters import EDGES, ParameterSpec, Shards, cut_shard, parameter_specs
from simulator.errors import InputError
from simulator.specs import ClusterSpec, ModelSpec

Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True)
class ShardedParameter:
    """A parameter of the model, and where it is in the tensor ``weight`` of the runtime's:
    ``rows`` of it (None: all), ``transposed`` or not."""

    parameter: nn.Parameter
    weight: str
    rows: slice | int | None
    transposed: bool
    placements: tuple[Placement, ...]

    def view(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return this rank's part of the parameter, or of its gradient, as a view."""
        found = tensors[self.weight]
        if self.rows is not None:
            found = found[self.rows]
        return found.t() if self.transposed else found


class ShardedStack:
    """The parameters of a stack: ``shards`` under the runtime's names, ``held`` in the model's
    order. Matrices of all layers come before all vectors, so that those of neighbouring layers are
    one range. Replaces the model's parameters; ``mesh`` None leaves them plain tensors."""

    def __init__(
        self, model: nn.Module, family: ModelPaths, spec: ModelSpec, cluster: ClusterSpec,
        mesh: DeviceMesh | None, weights: Weights, device: torch.device,
    ) -> None:  # fmt: skip
        found = places(family, model)
        first = found[0].parameter
        layers = [one for one in parameter_specs(spec, cluster) if one.owner != EDGES]
        specs = sorted(layers, key=lambda one: not one.is_matrix)
        total = sum(one.local_size(cluster.tp) for one in specs)
        flat = torch.empty(total, dtype=first.dtype, device=device)
        self.mesh = mesh
        self.shards = Shards(specs, cluster.tp, flat)
        rank = mesh.get_local_rank() if mesh else 0
        by_weight: dict[str, list[Place]] = {}
        for place in found:
            by_weight.setdefault(place.weight, []).append(place)
        held = {}
        for one in specs:
            parts = by_weight[one.name]
            shard = cut_shard(_whole(parts, family, weights), one, cluster.tp, rank)
            self.shards.weights[one.name].copy_(shard)
            for place in parts:
                held[place.name] = self._hold(model, place, one, family)
        self.held = tuple(held[place.name] for place in found)
        self._entries: list[tuple[Mapping[str, object], str, object]] = []
        self._modules: list[nn.Module] = []
        self._addresses = [one.view(self.shards.weights).data_ptr() for one in self.held]

    def _hold(
        self, model: nn.Module, place: Place, spec: ParameterSpec, family: ModelPaths
    ) -> ShardedParameter:
        rows = _rows(place, spec, self.shards.tp)
        transposed = family.transposed and len(spec.shape) == 2
        stub = ShardedParameter(
            parameter=place.parameter, weight=spec.name, rows=rows, transposed=transposed,
            placements=_placements(spec, transposed=transposed),
        )  # fmt: skip
        mine, old = stub.view(self.shards.weights), place.parameter
        if self.mesh is None and not old.is_meta:
            old.data = mine
            return stub
        whole = mine if self.mesh is None else distributed(mine, self.mesh, stub.placements, old)
        parameter = nn.Parameter(whole, requires_grad=old.requires_grad)
        replace_at(model, place.name, parameter)
        return replace(stub, parameter=parameter)

    def watch(self, layers: nn.Module) -> None:
        """Have ``check_in_place`` notice from now on whatever is replaced in ``layers``."""
        self._entries = _entries(layers)
        self._modules = [module for module in layers.modules() if module is not layers]

    def check_in_place(self) -> None:
        """Raise InputError where a module or a parameter is no longer the one that plans play, as
        after ``.to(dtype)``: the model would be trained, and the plan would never read it. So for
        hooks of modules that are not called."""
        for module in self._modules:
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                raise InputError(
                    f"A {type(module).__name__} inside of the layers has hooks, which would not be "
                    "called: a plan plays all layers as one. Put them on the model, the embedding, "
                    "the norm behind the layers or the head."
                )
        moved = [held.weight for held, address in zip(self.held, self._addresses, strict=True)
                 if local(held.parameter).data_ptr() != address]  # fmt: skip
        moved += [name for entries, name, entry in self._entries if entries.get(name) is not entry]
        if moved:
            raise InputError(
                f"Layers were changed behind apply (the first: {moved[0]}): moved to another dtype "
                "or device (.to, .half), loaded with assign=True, or wrapped (PEFT, DDP, FSDP). Do "
                "that to the whole model, and apply the plan last."
            )

    @property
    def gradient_dtype(self) -> torch.dtype:
        """Return the dtype of the parameters' gradients: theirs, or their ``grad_dtype``."""
        first = self.held[0].parameter
        found: torch.dtype = getattr(first, "grad_dtype", None) or first.dtype
        return found

    def gradients(self, grads: Mapping[str, Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
        """Return ``grads`` of the runtime as those of the parameters, in the order of ``held``, as
        views; None where not ``needed``."""
        return [
            self._gradient(one, grads) if wanted else None
            for one, wanted in zip(self.held, needed, strict=True)
        ]

    def _gradient(self, held: ShardedParameter, grads: Mapping[str, Tensor]) -> Tensor:
        mine = held.view(grads)
        if self.mesh is None:
            return mine
        return distributed(mine, self.mesh, held.placements, held.parameter)


def _entries(layers: nn.Module) -> list[tuple[Mapping[str, object], str, object]]:
    """Return all modules and parameters in ``layers``, each with where it is entered."""
    tables: list[Mapping[str, object]] = []
    for module in layers.modules():
        tables += [module._modules, module._parameters]
    return [(table, name, entry) for table in tables for name, entry in table.items()]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of ``tensor`` if it is a DTensor, else ``tensor``."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def distributed(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], like: Tensor
) -> DTensor:
    """Return a DTensor of the shape of ``like`` around this rank's part of it."""
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _whole(parts: Sequence[Place], family: ModelPaths, weights: Weights) -> Tensor:
    """Return the runtime's full tensor of the parameters that it is made of."""
    tensors = [weights.whole(place.name, place.parameter) for place in parts]
    if family.transposed and tensors[0].dim() == 2:
        tensors = [tensor.t() for tensor in tensors]
    if parts[0].weight.endswith(".qk_norm"):
        return torch.stack(tensors)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _rows(place: Place, spec: ParameterSpec, tp: int) -> slice | int | None:
    if place.parts == 1:
        return None
    if not spec.groups:
        return place.part
    heights = [height // tp for height in spec.groups]
    start = sum(heights[: place.part])
    return slice(start, start + heights[place.part])


def _placements(spec: ParameterSpec, *, transposed: bool) -> tuple[Placement, ...]:
    if spec.cut == "none":
        return (Replicate(),)
    dim = 0 if spec.cut == "rows" else 1
    dim = 1 - dim if transposed else dim
    return (Shard(dim),)


# Casts --------------------------------------------------------------------------------------------
# The stack's weights in the dtype that autocast asks for, cast once a step of the optimizer.

SAMPLES: Final = 4096
"""Weights that are compared with their casts before these are taken again."""
WRITTEN_UNSEEN: Final = (
    "Weights were changed through .data or a detached tensor while gradients add up, which torch "
    "does not count, so that a plan would compute with the old ones. Change them in place under "
    "torch.no_grad() (p.copy_, p.add_), by an optimizer, or after model.zero_grad()."
)
_WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_all: WeakSet[Casts] = WeakSet()


class Casts:
    """Casts of a stack's weights. One is kept while gradients add up: until an optimizer steps, the
    gradients are gone, or torch has counted a change of a weight."""

    def __init__(self, stack: ShardedStack, doubts: Doubts) -> None:
        self._stack, self._doubts = stack, doubts
        self._kept: tuple[tuple[object, ...], Tensor] | None = None
        _all.add(self)

    def of(self, dtype: torch.dtype, *, trains: bool) -> Tensor:
        """Return all weights in ``dtype``. Raise InputError, now or when the doubt is settled,
        where weights were changed and torch did not count it."""
        flat = self._stack.shards.model_copy
        if flat.dtype == dtype or not trains or captures(flat):
            return flat.to(dtype)
        made_of = dtype, flat._version, *(local(one.parameter)._version for one in self._stack.held)
        if self._kept is not None and self._kept[0] == made_of and self._adds_up():
            self._doubt(self._kept[1])
        else:
            self._kept = None  # frees it before the next one is made
            self._kept = made_of, flat.to(dtype)
        return self._kept[1]

    def drop(self) -> None:
        """Free what is kept."""
        self._kept = None

    def _adds_up(self) -> bool:
        """Return whether gradients of earlier micro-batches are there."""
        return any(one.parameter.grad is not None for one in self._stack.held)

    def _doubt(self, cast: Tensor) -> None:
        apart = max(1, len(cast) // SAMPLES)
        words = _WORDS[cast.element_size()]
        now = self._stack.shards.model_copy[::apart].to(cast.dtype)
        same = (now.view(words) == cast[::apart].contiguous().view(words)).all()
        self._doubts.require(same, WRITTEN_UNSEEN)


def drop_casts() -> None:
    """Free the casts of all stacks: an optimizer is about to step."""
    for casts in _all:
        casts.drop()


# Optimizers of models that play plans -------------------------------------------------------------
# Refusals in words, and whole moments that are cut.

NEEDS_WHOLE: Final = ("Adafactor", "Lamb", "LAMB")
"""Optimizers whose step needs whole matrices, and which torch cannot take for DTensors."""
_ROLE: Final = "domino_tune_role"
"""Attribute of a parameter: ``played`` by a plan, or ``replaced`` when one was applied."""


class Moments(InParts):
    """An optimizer's state in parts."""

    refusal = (
        "This rank has its part of the optimizer's state only. Save it on all ranks with "
        "torch.distributed.checkpoint (get_state_dict, as in examples/train_hf.py), or train "
        "with PlanTrainer, which saves it whole."
    )


def watch_optimizers(before: Iterable[nn.Parameter], after: Iterable[nn.Parameter]) -> None:
    """Have every optimizer's step refused that holds a parameter of ``before`` that is no longer
    in ``after``, and the moments of those in ``after`` cut as they are."""
    kept = {id(parameter): parameter for parameter in after}
    for parameter in before:
        setattr(parameter, _ROLE, "played" if id(parameter) in kept else "replaced")
    for parameter in kept.values():
        setattr(parameter, _ROLE, "played")
    _watch()


@cache
def _watch() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    roles = {getattr(one, _ROLE, "") for one in parameters}
    if "replaced" in roles:
        raise InputError(
            f"{type(optimizer).__name__} was made before apply, and holds parameters that the "
            "model no longer has. Make the optimizer after apply."
        )
    if "played" not in roles:
        return
    drop_casts()
    lay_out_moments(optimizer)
    if not any(isinstance(one, DTensor) for one in parameters):
        return
    if type(optimizer).__name__ in NEEDS_WHOLE:
        raise InputError(
            f"{type(optimizer).__name__} needs whole matrices, of which ranks hold parts. Take an "
            "optimizer that works element by element, such as AdamW(fused=True)."
        )
    if _in_parts not in optimizer._optimizer_state_dict_post_hooks.values():
        optimizer.register_state_dict_post_hook(_in_parts)


def _in_parts(_: Optimizer, state: dict[str, Any]) -> Moments:
    return Moments(state)


def lay_out_moments(optimizer: Optimizer) -> None:
    """Cut what was loaded whole as its parameters are, and lay it out in memory as they are: a
    fused optimizer goes through both side by side, whatever their strides."""
    every = [
        (parameter, moments, name)
        for parameter, moments in optimizer.state.items()
        for name, value in moments.items()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]
    if not every or hasattr(every[0][1][every[0][2]], _ROLE):
        return  # as they were at the last step: loading makes other tensors
    for parameter, moments, name in every:
        value = moments[name]
        if isinstance(parameter, DTensor) and not isinstance(value, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            value = distribute_tensor(value, mesh, placements, src_data_rank=None)
        if local(value).stride() != local(parameter).stride():
            value = torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)
        setattr(value, _ROLE, "laid out")
        moments[name] = value


def whole_moments(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state with whole tensors on the CPU; all ranks must call."""

    def whole(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return (value.full_tensor() if isinstance(value, DTensor) else value).cpu()

    state = optimizer.state_dict()
    held = {
        number: {name: whole(value) for name, value in moments.items()}
        for number, moments in state["state"].items()
    }
    return {**state, "state": held}
