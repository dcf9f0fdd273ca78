"""What each rank does in the tests of applied plans: play, and return what it found."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes

from domino_tune.base.errors import RunError
from domino_tune.runtime import apply
from domino_tune.runtime.huggingface.weights import FAMILIES, joined_fused
from simulator.errors import InputError
from simulator.schedule import TP
from tests.real.domino_tune.runtime.huggingface.models import PLANS, batch, model_of, plan_for

Tensor = torch.Tensor
CLIP = 0.5
MODELS = [f"transformers.models.{name}.modeling_{name}" for name in FAMILIES]


@dataclass
class Found:
    """Loss, logits in training and evaluation, whole gradients, and their clipped norm."""

    loss: float
    logits: Tensor
    evaluated: Tensor
    norm: float
    gradients: dict[str, Tensor] = field(default_factory=dict)


def whole(tensor: Tensor | None) -> Tensor:
    """Return a detached copy of ``tensor``, whole if it is a DTensor."""
    assert tensor is not None
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def whole_gradients(model: Any) -> dict[str, Tensor]:
    """Return full gradients under the names of ``transformers``."""
    found = {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    return joined_fused(found, FAMILIES[model.config.model_type])


def applied(
    name: str, plan: str, tp: int, *, dp: int = 1, dtype: torch.dtype = torch.float32,
    recompute: str = "none", main_grads: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Return a model that plays a plan on these ranks."""
    model = model_of(name, dtype, **options)
    file = plan_for(model, PLANS[plan], tp, dp=dp, recompute=recompute)
    return apply(model, file, main_grads=main_grads)


def passes(model: Any, *, autocast: bool = False, micro_batches: int = 1) -> Found:
    """Return what forward, backward and clipping of a batch give."""
    out: Any = None
    wide = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    batches = [batch(number) for number in range(micro_batches)]
    for ids, labels in batches:
        with wide:
            out = model(input_ids=ids, labels=labels)
        out.loss.backward()
    gradients = whole_gradients(model)
    norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
    with torch.no_grad(), wide:
        evaluated = model.eval()(input_ids=batches[-1][0]).logits
    model.train()
    return Found(out.loss.item(), whole(out.logits), whole(evaluated), norm.item(), gradients)


def agreement(rank: int, tp: int, jobs: list[tuple[str, str, dict[str, Any]]]) -> list[Found]:
    """Return what each (model, plan, options) gives."""
    found = []
    for name, plan, options in jobs:
        playing = {k: options[k] for k in ("autocast", "micro_batches") if k in options}
        making = {k: v for k, v in options.items() if k not in playing}
        found.append(passes(applied(name, plan, tp, **making), **playing))
    return found


def trained(model: Any, steps: int, first: int = 0, optimizer: Any = None) -> Any:
    """Return the losses of ``steps`` steps of AdamW with clipping, and the optimizer."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    losses = []
    for step in range(first, first + steps):
        ids, labels = batch(step % 5)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, optimizer


def curve(rank: int, tp: int, name: str, plan: str, steps: int, folder: Path) -> dict[str, Any]:
    """Train, save whole, and return losses and the logits that follow."""
    model = applied(name, plan, tp)
    losses, _ = trained(model, steps)
    model.save_pretrained(folder)
    with torch.no_grad():
        logits = whole(model.eval()(input_ids=batch()[0]).logits)
    return {"losses": losses, "logits": logits}


def resumed(rank: int, tp: int, name: str, plan: str, folder: Path) -> tuple[list[float], Any]:
    """Return the losses of six steps, and those of three, a checkpoint, and three of a new model
    that begins with other weights."""
    through, _ = trained(applied(name, plan, tp), 6)
    model = applied(name, plan, tp)
    before, optimizer = trained(model, 3)
    state, moments = get_state_dict(model, optimizer)
    save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    fresh = applied(name, plan, tp)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(0.01)
    again = torch.optim.AdamW(fresh.parameters(), lr=3e-3, weight_decay=0.1)
    state, moments = get_state_dict(fresh, again)
    load({"model": state, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(fresh, again, model_state_dict=state, optim_state_dict=moments)
    behind, _ = trained(fresh, 3, first=3, optimizer=again)
    return through, before + behind


def half_frozen(model: Any) -> Any:
    """Freeze the embeddings, a layer and another one's MLP; return the model after a backward."""
    model.get_input_embeddings().requires_grad_(False)
    for layer in model.model.layers[:1]:
        layer.requires_grad_(False)
    model.model.layers[1].mlp.requires_grad_(False)
    ids, labels = batch()
    model(input_ids=ids, labels=labels).loss.backward()
    return model


def frozen(rank: int, tp: int) -> dict[str, Tensor]:
    """Return whole gradients where much is frozen."""
    return whole_gradients(half_frozen(applied("llama", "rows", tp)))


def embeddings(rank: int, tp: int, plan: str, scaled: bool) -> tuple[int, dict[str, Tensor]]:
    """Return in how many parts the stack got the embeddings, 0 for none, and whole gradients;
    ``scaled``: a hook of the user's multiplies them."""
    model = applied("llama", plan, tp)
    parts = []
    if scaled:
        model.get_input_embeddings().register_forward_hook(lambda _, __, out: out * 1.5)
    model.model.layers.register_forward_pre_hook(
        lambda _, inputs: parts.append(len(getattr(inputs[0], "parts", ())))
    )
    ids, labels = batch()
    model(input_ids=ids, labels=labels).loss.backward()
    return parts[0], whole_gradients(model)


def on_the_lane(rank: int, tp: int) -> tuple[set[str], bool, bool]:
    """Return the names of the collectives around the stack on its lane; whether a call with a mask
    is refused; and whether no sum was under way after it, to memory that was given back."""
    model = applied("llama", "rows", tp)
    lane = model.model.layers.player.lanes[TP]
    ids, labels = batch()
    handles: list[Any] = []
    issue = lane.issue

    def issued(name: str, call: Any) -> Any:
        handles.append(issue(name, call))
        return handles[-1]

    lane.issue = issued
    model(input_ids=ids, labels=labels).loss.backward()
    names = {one.name for one in handles}
    handles.clear()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    try:
        model(input_ids=ids, labels=labels, attention_mask=mask)
    except InputError:
        return names & {"embed", "head"}, True, all(one.done.is_set() for one in handles)
    return names, False, False


def policies(rank: int, tp: int) -> tuple[list[int], int]:
    """Return the scheduling policies of the lanes' threads, and of this one, after apply."""
    model = applied("llama", "rows", tp)
    model(input_ids=batch()[0])
    lanes = [thread for thread in threading.enumerate() if thread.name.startswith("comm-")]
    return [os.sched_getscheduler(one.native_id or 0) for one in lanes], os.sched_getscheduler(0)


def mistakes(rank: int, tp: int, folder: Path) -> list[str]:
    """Return what a model says of batches that differ between ranks, of tokens and labels outside
    of the vocabulary, of a state to save, and of second derivatives; what apply says of weights
    and seeds that differ."""
    model = applied("llama", "rows", tp)
    ids, _ = batch()
    outside = ids.clone()
    outside[1, 3] = model.config.vocab_size
    same, other = model_of("llama"), model_of("llama")
    other.get_parameter("model.layers.1.mlp.up_proj.weight").data[0, 0] += rank
    calls: list[Callable[[], object]] = [
        lambda: model(input_ids=batch(rank)[0]),
        lambda: model(input_ids=ids[: 1 + rank]),
        lambda: model(input_ids=outside),
        lambda: model(input_ids=ids, labels=outside),
        lambda: model.save_pretrained(folder, state_dict=model.state_dict()),
        lambda: model(input_ids=ids, labels=ids).loss.backward(create_graph=True),
        lambda: apply(other, plan_for(other, PLANS["rows"], tp)),
        lambda: apply(same, plan_for(same, PLANS["rows"], tp), seed=rank),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append("nothing")
        except (InputError, RunError, IndexError, RuntimeError) as error:
            said.append(str(error))
    return said


def _rank(rank: int, ranks: int, folder: str, job: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    found = job(rank, *arguments)
    torch.save(found, f"{folder}/found{rank}")
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(folder: Path, ranks: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``job`` returns on each of ``ranks`` real processes.

    They are copies of a process that has imported all of this, and done nothing else.
    """
    multiprocessing.set_forkserver_preload([__name__, *MODELS])
    start_processes(  # type: ignore[no-untyped-call]
        _rank, (ranks, str(folder), job, arguments), nprocs=ranks, start_method="forkserver"
    )
    return [torch.load(folder / f"found{rank}", weights_only=False) for rank in range(ranks)]
