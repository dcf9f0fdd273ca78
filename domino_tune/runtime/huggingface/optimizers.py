"""Optimizers of models that play plans: refusals in words, and whole moments that are cut."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from domino_tune.runtime.huggingface.casts import drop_casts
from domino_tune.runtime.huggingface.copies import InParts
from domino_tune.runtime.huggingface.shard import local
from simulator.errors import InputError

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
