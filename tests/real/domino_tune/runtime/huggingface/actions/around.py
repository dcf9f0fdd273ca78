"""What users put around a model: Accelerate, torch.compile, wrappers; modes, optimizers."""

from __future__ import annotations

from typing import Any

import accelerate
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from domino_tune.runtime import apply
from tests.real.domino_tune.runtime.huggingface.actions.given import (
    TP,
    Given,
    action,
    applied,
    as_by_torchrun,
    both,
    loss_of,
    optimized,
    plan,
    stepped,
)
from tests.real.domino_tune.runtime.huggingface.models import (
    LENGTH,
    VOCAB,
    batch,
    model_of,
)


def prepared(given: Given, model: Any, optimizer: Any = None, **how: Any) -> list[Any]:
    """Return the accelerator, and model and optimizer as it has prepared them."""
    as_by_torchrun(given.rank, TP)
    by = accelerate.Accelerator(cpu=True)
    assert by.num_processes == TP
    return [by, by.prepare_model(model, **how), by.prepare(optimizer)]


@action("accelerate")
def prepared_and_stepped(given: Given) -> None:
    losses = []
    for model in (applied(), model_of("llama")):
        made = torch.optim.AdamW(model.parameters(), lr=1e-2)
        by, model, optimizer = prepared(given, model, made, evaluation_mode=True)
        for number in range(2):
            with by.accumulate(model):
                by.backward(loss_of(model, number))
                by.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        losses.append(float(loss_of(model)))
    assert abs(losses[0] / losses[1] - 1) < 1e-3, losses


@action("accelerate", "evaluation_mode=True")
def prepared_for_ddp(given: Given) -> None:
    prepared(given, applied())


@action("accelerate", "torch.distributed.checkpoint")
def state_saved_by_accelerate(given: Given) -> None:
    model = applied()
    made = torch.optim.AdamW(model.parameters())
    by, model, optimizer = prepared(given, model, made, evaluation_mode=True)
    by.backward(loss_of(model))
    optimizer.step()
    torch.save(optimizer.state_dict(), given.folder / f"accelerate{given.rank}")


@action("compile")
def compiled_by_aot(given: Given) -> None:
    torch._dynamo.reset()
    both(lambda model: loss_of(torch.compile(model, backend="aot_eager")).backward())


@action("compile")
def compiled_in_place(given: Given) -> None:
    torch._dynamo.reset()
    model = applied()
    model.compile(backend="aot_eager")
    loss_of(model).backward()


@action("wrappers", "averages its gradients")
def ddp(given: Given) -> None:
    DistributedDataParallel(applied())


@action("wrappers", "fully_shard")
def fully_sharded(given: Given) -> None:
    fully_shard(applied())


@action("wrappers", "fully_shard")
def a_layer_fully_sharded(given: Given) -> None:
    fully_shard(applied().model.layers[0])


@action("wrappers", "FSDP")
def fsdp(given: Given) -> None:
    loss_of(FullyShardedDataParallel(applied(), device_id=torch.device("cpu")))


@action("wrappers")
def data_parallel_without_gpus(given: Given) -> None:
    loss_of(DataParallel(applied())).backward()


@action("modes")
def evaluated(given: Given) -> None:
    model = applied()
    with torch.inference_mode():
        assert model.eval()(input_ids=batch()[0]).logits.argmax(-1).shape == (4, LENGTH)
    loss_of(model.train()).backward()


@action("modes")
def frozen_behind(given: Given) -> None:
    model = applied()
    model.model.layers[0].requires_grad_(False)
    loss_of(model).backward()


@action("modes")
def dropout(given: Given) -> None:
    loss_of(applied("gpt2", resid_pdrop=0.1, embd_pdrop=0.1).train()).backward()


@action("modes")
def attention_implementation(given: Given) -> None:
    model = applied()
    model.set_attn_implementation("eager")
    loss_of(model).backward()


@action("modes", "save the model, load it, and generate there")
def generated(given: Given) -> None:
    applied().generate(input_ids=batch()[0], max_new_tokens=2)


@action("modes", "does not support")
def checkpointing_behind(given: Given) -> None:
    applied().activation_checkpointing_enable()


@action("modes", "changed behind apply")
def cast_behind(given: Given) -> None:
    loss_of(applied().to(torch.bfloat16))


@action("modes", "before apply")
def vocabulary_grown(given: Given) -> None:
    applied().resize_token_embeddings(VOCAB + 8)


@action("modes", "before apply")
def other_embeddings(given: Given) -> None:
    applied().set_input_embeddings(nn.Embedding(VOCAB, 32))


@action("modes", "plays a plan already")
def applied_twice(given: Given) -> None:
    model = applied()
    apply(model, plan(model_of("llama")))


@action("optimizers")
def adamw_in_loops(given: Given) -> None:
    optimized(lambda parameters: torch.optim.AdamW(parameters, foreach=False))


@action("optimizers")
def adamw_foreach(given: Given) -> None:
    optimized(lambda parameters: torch.optim.AdamW(parameters, foreach=True))


@action("optimizers")
def adamw_fused(given: Given) -> None:
    optimized(lambda parameters: torch.optim.AdamW(parameters, fused=True))


@action("optimizers")
def sgd_with_momentum(given: Given) -> None:
    optimized(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


@action("optimizers", "whole matrices")
def adafactor(given: Given) -> None:
    model = applied()
    stepped(model, torch.optim.Adafactor(model.parameters()), 1)


@action("optimizers")
def muon(given: Given) -> None:
    """A DTensor's products are those of the whole matrix."""

    def trained(model: Any) -> float:
        matrices = [one for one in model.model.layers.parameters() if one.dim() == 2]
        return stepped(model, torch.optim.Muon(matrices, lr=0.05))

    assert abs(trained(applied()) / trained(model_of("llama")) - 1) < 1e-3
