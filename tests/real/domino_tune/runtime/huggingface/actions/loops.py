"""What users do in their loops."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from tests.real.domino_tune.runtime.huggingface.actions.given import (
    ONES,
    Given,
    action,
    applied,
    both,
    loss_of,
    whole,
)
from tests.real.domino_tune.runtime.huggingface.models import (
    LENGTH,
    VOCAB,
    batch,
    model_of,
)


@action("loop")
def accumulation(given: Given) -> None:
    both(lambda model: [loss_of(model, number).backward() for number in range(2)])


@action("loop")
def labels_that_do_not_count(given: Given) -> None:
    """All of a micro-batch: its loss is NaN, its gradients are 0, as those of ``transformers``."""

    def step(model: Any) -> None:
        ids, labels = batch()
        model(input_ids=ids, labels=labels).loss.backward()
        model(input_ids=ids, labels=torch.full_like(ids, -100)).loss.backward()

    both(step)


@action("loop")
def gradients_set_to_zero(given: Given) -> None:
    def step(model: Any) -> None:
        loss_of(model).backward()
        model.zero_grad(set_to_none=False)
        loss_of(model, 1).backward()

    both(step)


@action("loop")
def clipped_by_value(given: Given) -> None:
    def step(model: Any) -> None:
        loss_of(model).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)

    both(step)


@action("loop")
def clipped_by_norm(given: Given) -> None:
    def step(model: Any) -> None:
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    both(step)


@action("loop")
def scaled_gradients(given: Given) -> None:
    model = applied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


@action("loop")
def autocast(given: Given) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(applied())
    loss.backward()


@action("loop")
def without_sync(given: Given) -> None:
    model = applied()
    with model.no_sync():
        loss_of(model).backward()


@action("loop")
def counted_items(given: Given) -> None:
    both(lambda model: loss_of(model, num_items_in_batch=torch.tensor(50)).backward())


@action("loop")
def embeddings_as_input(given: Given) -> None:
    def step(model: Any) -> None:
        torch.manual_seed(1)
        made = torch.randn(4, LENGTH, 32, requires_grad=True)
        model(inputs_embeds=made, labels=batch()[1]).loss.backward()

    both(step)


@action("loop")
def a_few_logits(given: Given) -> None:
    out = applied()(input_ids=batch()[0], logits_to_keep=2)
    assert out.logits.shape == (4, 2, VOCAB)


@action("loop")
def a_tuple_instead_of_names(given: Given) -> None:
    ids, labels = batch()
    loss, *_ = applied()(input_ids=ids, labels=labels, return_dict=False)
    loss.backward()


@action("loop")
def gradients_by_autograd_grad(given: Given) -> None:
    model = applied()
    found = torch.autograd.grad(loss_of(model), list(model.parameters()))
    assert len(found) == len(list(model.parameters()))


@action("loop")
def hooks_on_parameters(given: Given) -> None:
    seen: list[int] = []
    model = applied()
    for parameter in model.parameters():
        parameter.register_hook(lambda _: seen.append(1))
    loss_of(model).backward()
    assert len(seen) == len(list(model.parameters()))


@action("loop", "has hooks, which would not be called")
def hooks_on_a_layer(given: Given) -> None:
    model = applied()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    loss_of(model)


@action("loop")
def hooks_on_the_model(given: Given) -> None:
    def calls(model: Any) -> list[str]:
        seen: list[str] = []
        model.register_forward_hook(lambda *_: seen.append("forward"))
        model.lm_head.register_full_backward_hook(lambda *_: seen.append("head"))
        loss_of(model).backward()
        return seen

    assert calls(applied()) == calls(model_of("llama"))


@action("loop", "check_nan=False")
def anomaly_mode(given: Given) -> None:
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        loss_of(applied()).backward()


@action("loop")
def anomaly_mode_without_nan(given: Given) -> None:
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        both(lambda model: loss_of(model).backward())


@action("loop")
def saved_tensors_on_the_host(given: Given) -> None:
    with torch.autograd.graph.save_on_cpu():
        loss_of(applied()).backward()


@action("loop")
def a_loss_of_whole_logits(given: Given) -> None:
    def step(model: Any) -> None:
        ids, _ = batch()
        logits = model(input_ids=ids).logits
        logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
        loss: Any = F.cross_entropy(logits.view(-1, VOCAB), ids.view(-1))
        loss.backward()

    both(step)


@action("loop", "full_tensor")
def a_loss_of_cut_logits(given: Given) -> None:
    ids, _ = batch()
    logits = applied()(input_ids=ids).logits
    F.cross_entropy(logits[:, :-1].float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


@action("loop", "full_tensor")
def distilled_from_another_model(given: Given) -> None:
    ids, _ = batch()
    with torch.no_grad():
        wanted = model_of("llama")(input_ids=ids).logits.softmax(-1)
    F.kl_div(applied()(input_ids=ids).logits.log_softmax(-1), wanted)


@action("loop", "retain_graph")
def backward_twice(given: Given) -> None:
    loss = loss_of(applied())
    loss.backward(retain_graph=True)
    loss.backward()


@action("loop", "create_graph=True")
def second_derivatives(given: Given) -> None:
    loss_of(applied()).backward(create_graph=True)


@action("loop", "padding is not played")
def padding(given: Given) -> None:
    mask = ONES.clone()
    mask[0, :3] = 0
    applied()(input_ids=batch()[0], attention_mask=mask)


@action("loop", "packed sequences")
def packing(given: Given) -> None:
    applied()(input_ids=batch()[0], position_ids=torch.arange(LENGTH).repeat(4, 1) % 8)


@action("loop", "different batches")
def other_batches_later(given: Given) -> None:
    """The first batches are equal, and a sampler differs from then on."""
    model = applied()
    for number in range(20):
        loss_of(model, number * (given.rank + 1))


@action("loop", "behind apply")
def functional_call(given: Given) -> None:
    model = applied()
    other = {name: whole(one).clone() for name, one in model.named_parameters()}
    ids, _ = batch()
    torch.func.functional_call(model, other, (), {"input_ids": ids})
