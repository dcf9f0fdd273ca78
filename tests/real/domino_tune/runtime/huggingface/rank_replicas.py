"""What each rank does in the tests of replicas: a pass, and what became of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from domino_tune.runtime import executor
from domino_tune.runtime.huggingface.shard import local
from domino_tune.runtime.huggingface.weights import FAMILIES
from domino_tune.runtime.lanes.lane import Call
from simulator import optimizer
from tests.real.domino_tune.runtime.huggingface.models import batch
from tests.real.domino_tune.runtime.huggingface.ranks import applied, whole, whole_gradients

Tensor = torch.Tensor
Gradients = dict[str, Tensor]


def loss_of(model: Any, number: int) -> Any:
    ids, labels = batch(number)
    return model(input_ids=ids, labels=labels).loss


def replica(name: str, plan: str, tp: int, **options: Any) -> Any:
    """Return a model of two replicas, each of whose layers has a bucket of its own."""
    optimizer.DP_BUCKET_PARAMETERS = 1  # type: ignore[misc]
    return applied(name, plan, tp, dp=2, **options)


def two_micro_batches(rank: int, tp: int, name: str, plan: str) -> Gradients:
    """Two micro-batches, the first of them within ``no_sync``."""
    model = replica(name, plan, tp)
    with model.no_sync():
        loss_of(model, 2 * (rank // tp)).backward()
    loss_of(model, 2 * (rank // tp) + 1).backward()
    return whole_gradients(model)


def head_alone(rank: int, tp: int) -> Gradients:
    """All but the head is frozen: embeddings and layers take no part in backward."""
    model = replica("llama", "rows", tp)
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    loss_of(model, rank // tp).backward()
    return whole_gradients(model)


def surrounded(rank: int) -> dict[str, Gradients]:
    """What users do around backward: gradients by name of what was done."""
    deeds: dict[str, Callable[[Any], object]] = {
        "twice in one pass": lambda m: (loss_of(m, rank) + loss_of(m, 2 + rank)).backward(),
        "zeros kept": lambda m: (
            loss_of(m, 7).backward(), m.zero_grad(set_to_none=False), loss_of(m, rank).backward(),
        ),
        "averaged, then more": lambda m: (
            loss_of(m, rank).backward(), loss_of(m, 2 + rank).backward(),
        ),
        "a hook": _hooked(rank),
        "another use": lambda m: (
            loss_of(m, rank) * (1 + m.model.layers[1].mlp.up_proj.weight.square().sum())
        ).backward(),
        "frozen between": _frozen_between(rank),
        "autograd.grad": _by_autograd_grad(rank),
    }  # fmt: skip
    found = {}
    for name, deed in deeds.items():
        model = replica("llama", "rows", 1)
        deed(model)
        found[name] = whole_gradients(model)
    return found


def _hooked(rank: int) -> Callable[[Any], object]:
    def deed(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.up_proj.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        with model.no_sync():
            loss_of(model, rank).backward()
        loss_of(model, 2 + rank).backward()

    return deed


def _frozen_between(rank: int) -> Callable[[Any], object]:
    def deed(model: Any) -> None:
        with model.no_sync():
            loss_of(model, rank).backward()
        model.model.layers[1].requires_grad_(False)
        loss_of(model, 2 + rank).backward()

    return deed


def _by_autograd_grad(rank: int) -> Callable[[Any], object]:
    def deed(model: Any) -> None:
        loss_of(model, rank).backward()
        weight = model.model.layers[1].mlp.up_proj.weight
        torch.autograd.grad(loss_of(model, rank), [weight, model.lm_head.weight])

    return deed


def in_bf16(rank: int, tp: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of bf16 weights with sequence parallelism, and the mean of both replicas' own,
    which were found without synchronising."""
    model = replica("qwen3", "rows sp", tp, dtype=torch.bfloat16)
    own = []
    with model.no_sync():
        for number in range(2):
            loss_of(model, number).backward()
            own.append([whole(one.grad) for one in model.parameters()])
            model.zero_grad()
    loss_of(model, rank // tp).backward()
    wanted = [torch.stack(pair).mean(0) for pair in zip(*own, strict=True)]
    return [whole(one.grad) for one in model.parameters()], wanted


def order_of_events(rank: int, name: str, *, accumulates: bool) -> tuple[list[str], bool]:
    """Norms of backward and sums over replicas in the order of their issue; and whether the
    layers' gradients are views of the memory that was summed."""
    model = replica(name, "inter", 1)
    layers: Any = model.get_submodule(FAMILIES[model.config.model_type].stack)
    lane = layers.player.replicas._lane
    events: list[str] = []
    memory: list[int] = []
    issue, norm = lane.issue, executor.FUNCTIONS["attn.norm_bwd"]

    def issued(what: str, call: Call) -> Any:
        events.append(f"sum of {call.target.numel()}")
        memory.append(call.target.untyped_storage().data_ptr())
        return issue(what, call)

    def normed(state: Any, op: Any) -> None:
        norm(state, op)
        events.append(f"l{op.layer}")

    if accumulates:
        with model.no_sync():
            loss_of(model, 0).backward()
    lane.issue = issued
    executor.FUNCTIONS["attn.norm_bwd"] = normed
    loss_of(model, rank).backward()
    grads = [local(one.grad) for one in layers.parameters()]
    return events, all(one.untyped_storage().data_ptr() in memory for one in grads)


def halves(rank: int) -> Tensor:
    """The mean over two ranks of numbers whose sum is above fp16's largest."""
    model = replica("llama", "rows", 1)
    large = torch.full((8,), 4e4 + 1000 * rank, dtype=torch.float16)
    averaging = model.model.layers.player.replicas
    averaging.send(large)
    averaging.wait()
    return large
