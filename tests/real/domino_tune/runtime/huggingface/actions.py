"""What users do around ``apply``: one function an action, and the words of those that are refused.

Each runs on two real ranks at TP 2, on a model of its own.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import accelerate
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from domino_tune.runtime import apply
from simulator.specs import ClusterSpec
from tests.real.domino_tune.runtime.huggingface.models import (
    LENGTH,
    PLANS,
    VOCAB,
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
    """Compare the loss behind two steps with that of ``transformers``' own model."""
    model, theirs = applied(), model_of("llama")
    ours, other = (stepped(one, make(one.parameters())) for one in (model, theirs))
    assert abs(ours / other - 1) < 1e-3, (ours, other)


# Before apply


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


# The loop


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
        F.cross_entropy(logits.view(-1, VOCAB), ids.view(-1)).backward()

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


# Checkpoints


@action("checkpoint")
def state_loaded_again(given: Given) -> None:
    model = applied()
    model.load_state_dict(model.state_dict())
    loss_of(model).backward()


@action("checkpoint")
def whole_state_loaded(given: Given) -> None:
    """Of the unsharded model, as from a file; GPT-2's c_attn is one tensor in it."""
    for name in ("llama", "gpt2"):
        model, theirs = applied(name), model_of(name)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.mul_(1.5)
        model.load_state_dict(theirs.state_dict())
        assert abs(float(loss_of(model)) / float(loss_of(theirs)) - 1) < 1e-4


@action("checkpoint")
def whole_state_by_torch(given: Given) -> None:
    found = get_model_state_dict(
        applied(), options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    assert given.rank or found["model.norm.weight"].shape == (32,)


@action("checkpoint")
def distributed_checkpoint(given: Given) -> None:
    model = applied()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stepped(model, optimizer, 1)
    state, moments = get_state_dict(model, optimizer)
    save({"model": state, "optimizer": moments}, checkpoint_id=given.folder / "dcp")
    load({"model": state, "optimizer": moments}, checkpoint_id=given.folder / "dcp")
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    stepped(model, optimizer, 1)


@action("checkpoint")
def saved_by_name(given: Given) -> None:
    applied().save_pretrained(save_directory=given.folder / "by-name")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(given.folder / "by-name")
    assert loaded.config.model_type == "llama"


@action("checkpoint")
def whole_moments_loaded(given: Given) -> None:
    """Of an unsharded run's optimizer: they are cut at the next step."""
    model, theirs = applied(), model_of("llama")
    ours, other = (torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (model, theirs))
    stepped(theirs, other)
    model.load_state_dict(theirs.state_dict())
    ours.load_state_dict(copy.deepcopy(other.state_dict()))
    found = [stepped(one, by) for one, by in ((model, ours), (theirs, other))]
    assert abs(found[0] / found[1] - 1) < 1e-3


@action("checkpoint", "leave state_dict out")
def saved_with_a_state(given: Given) -> None:
    model = applied()
    model.save_pretrained(given.folder / "never", state_dict=model.state_dict())


@action("checkpoint", "save_pretrained")
def pickled_state(given: Given) -> None:
    torch.save({"model": applied().state_dict()}, given.folder / f"state{given.rank}")


@action("checkpoint", "torch.distributed.checkpoint")
def pickled_moments(given: Given) -> None:
    model = applied()
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer, 1)
    torch.save(optimizer.state_dict(), given.folder / f"moments{given.rank}")


@action("checkpoint", "is not copied")
def pickled_model(given: Given) -> None:
    torch.save(applied(), given.folder / f"model{given.rank}")


@action("checkpoint", "is not copied")
def copied(given: Given) -> None:
    copy.deepcopy(applied())


@action("checkpoint", "is not copied")
def averaged_model(given: Given) -> None:
    torch.optim.swa_utils.AveragedModel(applied())


# Accelerate (Trainer has tests of its own)


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


# torch.compile


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


# Wrappers


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


# Modes, and changes behind apply


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


# Optimizers


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
