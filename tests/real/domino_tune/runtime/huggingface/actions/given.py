"""What users do around ``apply``: one function an action, and the words of those that are refused.

Each runs on two real ranks at TP 2, on a model of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import accelerate
import torch
from torch.distributed.tensor import DTensor

from domino_tune.runtime import apply
from tests.real.domino_tune.runtime.huggingface.models import (
    LENGTH,
    PLANS,
    batch,
    model_of,
    plan_for,
)

TP: Final = 2
ONES: Final = torch.ones(4, LENGTH, dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What an action starts with: its rank, and a folder that all ranks share."""

    rank: int
    folder: Path


def as_by_torchrun(rank: int, ranks: int) -> None:
    """Tell Accelerate of these ranks, as torchrun does."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": 1}
    os.environ |= {"MASTER_ADDR": "localhost", **{name: str(it) for name, it in place.items()}}
    accelerate.state.AcceleratorState._reset_state(True)


Act = Callable[[Given], object]


@dataclass(frozen=True, kw_only=True)
class Action:
    """``refused``: words of the message; empty where the action runs."""

    group: str
    act: Act
    refused: str = ""


ACTIONS: Final[dict[str, Action]] = {}


def action(group: str, refused: str = "") -> Callable[[Act], Act]:
    """Register a function under its own name."""

    def register(act: Act) -> Act:
        ACTIONS[act.__name__] = Action(group=group, act=act, refused=refused)
        return act

    return register


def plan(model: Any) -> Any:
    return plan_for(model, PLANS["rows"], TP)


def applied(name: str = "llama", dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    model = model_of(name, dtype, **options)
    return apply(model, plan(model))


def loss_of(model: Any, number: int = 0, **more: Any) -> Any:
    ids, labels = batch(number)
    return model(input_ids=ids, labels=labels, **more).loss


def whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach()


def alike(model: Any, theirs: Any) -> None:
    """Compare all gradients with those of ``transformers``' own model."""
    for (name, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        if other.grad is None:
            assert ours.grad is None, name
        else:
            assert torch.allclose(whole(ours.grad), other.grad, rtol=1e-3, atol=1e-5), name


def both(step: Callable[[Any], Any], **options: Any) -> None:
    """Do the same with a model that plays a plan and with one that does not; compare gradients."""
    model, theirs = applied(**options), model_of("llama")
    for one in (model, theirs):
        step(one)
    alike(model, theirs)


def stepped(model: Any, optimizer: torch.optim.Optimizer, steps: int = 2) -> float:
    for number in range(steps):
        loss = loss_of(model, number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss_of(model, 0))


def optimized(make: Callable[[Any], Any]) -> None:
    """Compare the loss after two steps with that of ``transformers``' own model."""
    model, theirs = applied(), model_of("llama")
    ours, other = (stepped(one, make(one.parameters())) for one in (model, theirs))
    assert abs(ours / other - 1) < 1e-3, (ours, other)
