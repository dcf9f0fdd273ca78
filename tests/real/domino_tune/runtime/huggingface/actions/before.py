"""What users do before ``apply``."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import accelerate
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from domino_tune.runtime import apply
from simulator.specs import ClusterSpec
from tests.real.domino_tune.runtime.huggingface.actions.given import (
    Given,
    action,
    applied,
    loss_of,
    plan,
    stepped,
    whole,
)
from tests.real.domino_tune.runtime.huggingface.models import (
    VOCAB,
    model_of,
)


@action("before apply")
def weights_in_bf16(given: Given) -> None:
    loss_of(applied(dtype=torch.bfloat16)).backward()


@action("before apply")
def weights_in_fp16(given: Given) -> None:
    loss_of(applied(dtype=torch.float16)).backward()


@action("before apply")
def tied_embeddings(given: Given) -> None:
    loss_of(applied("qwen2")).backward()


@action("before apply")
def frozen_before(given: Given) -> None:
    model = model_of("llama")
    model.get_input_embeddings().requires_grad_(False)
    loss_of(apply(model, plan(model))).backward()
    assert model.get_input_embeddings().weight.grad is None


@action("before apply")
def copied_before(given: Given) -> None:
    model = copy.deepcopy(model_of("llama"))
    loss_of(apply(model, plan(model))).backward()


@action("before apply")
def vocabulary_grown_before(given: Given) -> None:
    model = model_of("llama")
    model.resize_token_embeddings(VOCAB + 3, mean_resizing=False)
    loss_of(apply(model, plan(model))).backward()


@action("before apply", "made before apply")
def optimizer_made_before(given: Given) -> None:
    model = model_of("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(apply(model, plan(model)), optimizer)


@action("before apply", "made before apply")
def optimizer_of_gpt2_made_before(given: Given) -> None:
    model = model_of("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped(apply(model, plan(model)), optimizer)


@action("before apply", "activation_checkpointing_disable")
def checkpointing_before(given: Given) -> None:
    model = model_of("llama")
    model.activation_checkpointing_enable()
    apply(model, plan(model))


@action("before apply", "wrapped")
def ddp_before(given: Given) -> None:
    model = model_of("llama")
    apply(DistributedDataParallel(model), plan(model))


@action("before apply", "distributed already")
def fully_sharded_before(given: Given) -> None:
    model = model_of("llama")
    made = plan(model)
    apply(fully_shard(model), made)


@action("before apply")
def compiled_before(given: Given) -> None:
    torch._dynamo.reset()
    model = model_of("llama")
    compiled: Any = torch.compile(model, backend="eager")
    loss_of(apply(compiled, plan(model))).backward()


@action("before apply", "meta device")
def on_meta(given: Given) -> None:
    model = model_of("llama")
    apply(model.to("meta"), plan(model))


@action("before apply", "several dtypes")
def several_dtypes(given: Given) -> None:
    model = model_of("llama")
    model.lm_head.to(torch.bfloat16)
    apply(model, plan(model))


@action("before apply", "num_key_value_heads = 1, fewer than tp = 2")
def fewer_heads_than_ranks(given: Given) -> None:
    made = plan(model_of("llama", num_key_value_heads=2))
    model = model_of("llama", num_key_value_heads=1)
    one = replace(made, model=replace(made.model, num_key_value_heads=1), cluster=ClusterSpec(tp=2))
    apply(model, one)


@action("before apply", "gpt2, llama, mistral, qwen2, qwen3")
def gemma(given: Given) -> None:
    config = transformers.GemmaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=32, vocab_size=VOCAB, head_dim=16,
    )  # fmt: skip
    apply(transformers.GemmaForCausalLM(config), plan(model_of("llama")))


@action("before apply", "adapters")
def peft_before(given: Given) -> None:
    model = model_of("llama")
    model.peft_config = {"default": object()}
    apply(model, plan(model))


@action("before apply", "does not play distributed-optimizer")
def sharded_optimizer(given: Given) -> None:
    model = model_of("llama")
    made = plan(model)
    apply(
        model,
        replace(made, workload=replace(made.workload, data_parallel="distributed-optimizer")),
    )


@action("before apply")
def empty_before(given: Given) -> None:
    """A model made without weights: each rank reads its part of the files."""
    for name in ("llama", "qwen2", "gpt2"):
        theirs, folder = model_of(name), given.folder / f"empty-{name}"
        if given.rank == 0:
            theirs.save_pretrained(folder, max_shard_size="20KB")
        dist.barrier()
        with accelerate.init_empty_weights():
            empty = type(theirs)(theirs.config)
        model = apply(empty, plan(theirs), weights=folder)
        for one in (model, theirs):
            loss_of(one).backward()
        ours, other = (nn.utils.clip_grad_norm_(m.parameters(), 1.0) for m in (model, theirs))
        assert torch.allclose(whole(ours), other, rtol=1e-4), name


@action("before apply", "neither model.safetensors nor")
def empty_without_files(given: Given) -> None:
    theirs = model_of("llama")
    with accelerate.init_empty_weights():
        empty = type(theirs)(theirs.config)
    apply(empty, plan(theirs), weights=given.folder / "nothing")
