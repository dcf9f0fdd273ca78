"""What apply and a model that plays a plan refuse, and how they say so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from domino_tune.base.errors import RunError
from domino_tune.runtime import apply
from domino_tune.runtime.huggingface.checks import check_device
from simulator.errors import InputError
from simulator.specs import ClusterSpec
from tests.real.domino_tune.runtime.huggingface.models import (
    LENGTH,
    PLANS,
    VOCAB,
    batch,
    model_of,
    plan_for,
)
from tests.real.domino_tune.runtime.huggingface.ranks import applied, mistakes, on_ranks

ONES = torch.ones(4, LENGTH, dtype=torch.long)


def padded() -> Any:
    mask = ONES.clone()
    mask[0, :3] = 0
    return mask


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"attention_mask": padded()}, "padding is not played"),
        ({"position_ids": torch.arange(LENGTH).repeat(4, 1) % 8}, "packed sequences"),
        ({"use_cache": True}, "use_cache=True"),
        ({"past_key_values": ()}, "a cache of keys and values"),
        ({"output_hidden_states": True}, "never holds whole"),
        ({"output_attentions": True}, "fused attention"),
    ],
)
def test_arguments_that_no_plan_plays(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        applied("llama", "rows", 1)(input_ids=batch()[0], **arguments)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_masks_and_positions_that_say_nothing_are_taken(implementation: str) -> None:
    model = applied("llama", "rows", 1)
    model.set_attn_implementation(implementation)
    ids, _ = batch()
    plain = model(input_ids=ids).logits
    positions = torch.arange(LENGTH).unsqueeze(0)
    with_all = model(input_ids=ids, attention_mask=ONES, position_ids=positions, use_cache=False)
    assert torch.equal(plain, with_all.logits)


def test_a_device_is_asked_once_and_then_heard_of_before_gradients() -> None:
    """As on a GPU: the first micro-batch is looked at in forward, later ones in backward."""
    model = applied("llama", "rows", 1)
    model.model.layers.player.doubts.defers = True
    ids, labels = batch()
    with pytest.raises(InputError, match="padding is not played"):
        model(input_ids=ids, attention_mask=padded())
    model(input_ids=ids, attention_mask=ONES, labels=labels).loss.backward()
    model.zero_grad()
    loss = model(input_ids=ids, attention_mask=padded(), labels=labels).loss
    with pytest.raises(InputError, match="padding is not played"):
        loss.backward()
    assert all(one.grad is None for one in model.model.layers.parameters())
    model(input_ids=ids, attention_mask=ONES, labels=labels).loss.backward()


def test_what_no_backward_will_hear_of_is_refused_at_once_or_in_the_next_forward() -> None:
    model = applied("llama", "rows", 1)
    model.model.layers.player.doubts.defers = True
    ids, _ = batch()
    positions = torch.arange(LENGTH).repeat(4, 1)
    model(input_ids=ids, position_ids=positions)
    model(input_ids=ids, position_ids=positions % 8)
    with pytest.raises(InputError, match="packed sequences"):
        model(input_ids=ids)
    with torch.no_grad(), pytest.raises(InputError, match="packed sequences"):
        model(input_ids=ids, position_ids=positions % 8)
    model(input_ids=ids)


def test_generation_is_refused() -> None:
    with pytest.raises(InputError, match="save the model, load it, and generate there"):
        applied("llama", "rows", 1).generate(input_ids=batch()[0], max_new_tokens=2)


def test_backward_runs_once() -> None:
    model = applied("llama", "rows", 1)
    ids, labels = batch()
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RunError, match="retain_graph"):
        loss.backward()


def test_second_derivatives_are_refused() -> None:
    ids, labels = batch()
    loss = applied("llama", "rows", 1)(input_ids=ids, labels=labels).loss
    with pytest.raises(RunError, match="create_graph=True"):
        loss.backward(create_graph=True)


def test_gradient_checkpointing_of_the_model_is_refused() -> None:
    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    model.activation_checkpointing_enable()
    with pytest.raises(InputError, match="activation_checkpointing_disable"):
        apply(model, plan)
    with pytest.raises(ValueError, match=r"does not support (activation|gradient) checkpointing"):
        applied("llama", "rows", 1).activation_checkpointing_enable()


def test_sequences_beyond_the_window_are_refused() -> None:
    model = applied("mistral", "rows", 1, sliding_window=32)
    model(input_ids=batch()[0])
    with pytest.raises(InputError, match="attends to 32 tokens and got sequences of 40"):
        model(input_ids=torch.zeros(1, 40, dtype=torch.long))


def test_attention_dropout_is_refused() -> None:
    model = model_of("gpt2", attn_pdrop=0.1)
    with pytest.raises(InputError, match=r"attention dropout 0\.1.*attn_pdrop=0\.0"):
        apply(model, plan_for(model_of("gpt2"), PLANS["rows"], 1))


def test_gelu_that_is_not_by_tanh_is_refused() -> None:
    model = model_of("gpt2", activation_function="gelu")
    with pytest.raises(InputError, match=r"'gelu'.*GeLU by tanh"):
        apply(model, plan_for(model_of("gpt2"), PLANS["rows"], 1))


def test_adapters_are_refused() -> None:
    class LoraLinear(nn.Linear):
        """Stands for PEFT's wrapper of a linear."""

    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    model.model.layers[0].self_attn.q_proj = LoraLinear(32, 32, bias=False)
    with pytest.raises(InputError, match=r"self_attn\.q_proj is a LoraLinear: adapters"):
        apply(model, plan)


@pytest.mark.parametrize("whole", [False, True], ids=["in place", "wrapped"])
def test_pefts_adapters_are_refused(whole: bool) -> None:
    """PEFT's class is called Linear, too; its model forwards what it does not have itself."""
    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    if whole:
        model.peft_config = {"default": object()}
    else:
        model.model.layers[0].self_attn.q_proj.base_layer = nn.Linear(32, 32)
    with pytest.raises(InputError, match=r"adapters \(PEFT\)"):
        apply(model, plan)


def test_experts_are_refused_by_name() -> None:
    model = model_of("llama")
    model.config.num_local_experts = 8
    with pytest.raises(InputError, match="LlamaForCausalLM has experts"):
        apply(model, plan_for(model_of("llama"), PLANS["rows"], 1))


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ({"data_parallel": "distributed-optimizer"}, "does not play distributed-optimizer"),
        ({"tp_collectives": "multimem"}, "multimem collectives"),
    ],
)
def test_plans_of_what_is_not_played_are_refused(workload: dict[str, Any], reason: str) -> None:
    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    plan = replace(plan, workload=replace(plan.workload, **workload))
    with pytest.raises(InputError, match=reason):
        apply(model, plan)


def test_a_plan_with_cuda_graphs_is_said_to_be_played_without() -> None:
    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    plan = replace(plan, cluster=replace(plan.cluster, cuda_graph=True))
    with pytest.warns(UserWarning, match="made with CUDA graphs, and apply launches each op"):
        apply(model, plan)


def test_another_gpu_and_several_queues_are_told() -> None:
    device = torch.device("cuda", 1)
    with pytest.raises(InputError, match=r"on cuda:1, and this process launches on cuda:0.*set_de"):
        check_device(device, 0, "1")
    with pytest.warns(UserWarning, match="CUDA_DEVICE_MAX_CONNECTIONS is not set"):
        check_device(device, 1, "")
    check_device(device, 1, "1")


def test_more_ranks_than_heads_are_refused() -> None:
    model = model_of("llama")
    plan = replace(plan_for(model, PLANS["rows"], 1), cluster=ClusterSpec(tp=4))
    with pytest.raises(InputError, match="num_key_value_heads = 2, fewer than tp = 4"):
        apply(model, plan)


def test_a_plan_for_another_model_is_refused() -> None:
    plan = plan_for(model_of("llama"), PLANS["rows"], 1)
    other = model_of("llama", num_hidden_layers=2, rope_scaling=None)
    message = r"num_hidden_layers is 2 here, 3 in the plan; rope_scaling_factor is 1\.0 here, 8\.0"
    with pytest.raises(InputError, match=message):
        apply(other, plan)


def test_a_plan_for_more_ranks_is_refused() -> None:
    model = model_of("llama")
    with pytest.raises(InputError, match=r"tp 2, and torch\.distributed has 1 ranks.*torchrun"):
        apply(model, plan_for(model, PLANS["rows"], 2))


def test_models_of_other_families_are_refused() -> None:
    with pytest.raises(InputError, match="gpt2, llama, mistral, qwen2, qwen3"):
        apply(nn.Linear(2, 2), plan_for(model_of("llama"), PLANS["rows"], 1))
    body = model_of("llama").model
    with pytest.raises(InputError, match="with its head"):
        apply(body, plan_for(model_of("llama"), PLANS["rows"], 1))


def test_weights_of_two_dtypes_are_refused() -> None:
    model = model_of("llama")
    plan = plan_for(model, PLANS["rows"], 1)
    model.lm_head.to(torch.bfloat16)
    with pytest.raises(InputError, match="several dtypes"):
        apply(model, plan)


def test_gated_mlps_without_silu_are_refused() -> None:
    plan = plan_for(model_of("llama"), PLANS["rows"], 1)
    with pytest.raises(InputError, match=r"hidden_act is 'relu'; gated MLPs.*SiLU alone"):
        apply(model_of("llama", hidden_act="relu"), plan)


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_a_config_that_asks_for_states_is_refused(name: str) -> None:
    model = applied("llama", "rows", 1)
    model.set_attn_implementation("eager")
    setattr(model.config, name, True)
    with pytest.raises(InputError, match=f"{name}, as an argument or in its config"):
        model(input_ids=batch()[0])


def test_masks_that_are_not_tensors_are_refused() -> None:
    model = applied("llama", "rows", 1)
    with pytest.raises(InputError, match=r"a tuple of its mask.*set_attn_implementation\('sdpa'\)"):
        model.model.layers(torch.zeros(4, LENGTH, 32), attention_mask=())


def _wrapped(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: model.load_state_dict(model_of("llama").state_dict(), assign=True),
        _wrapped,
        lambda model: setattr(model.model.layers, "1", model_of("llama").model.layers[1]),
    ],
    ids=["dtype", "assigned", "wrapped", "replaced"],
)
def test_layers_that_were_changed_behind_apply_are_refused(change: Callable[[Any], object]) -> None:
    """They would be trained, and the plan would play what they were."""
    model = applied("llama", "rows", 1)
    model.to("cpu")(input_ids=batch()[0])
    change(model)
    with pytest.raises(InputError, match=r"changed behind apply.*apply the plan last"):
        model(input_ids=batch()[0])


def test_applying_twice_is_refused() -> None:
    model = applied("llama", "rows", 1)
    with pytest.raises(InputError, match="plays a plan already"):
        apply(model, plan_for(model, PLANS["rows"], 1))


def test_a_copy_is_refused() -> None:
    with pytest.raises(InputError, match="is not copied"):
        copy.deepcopy(applied("llama", "rows", 1))


def test_ranks_hear_of_mistakes(tmp_path: Path) -> None:
    """All ranks, and none waits for another."""
    for said in on_ranks(tmp_path, 2, mistakes, 2, tmp_path / "saved"):
        for found, wanted in zip(
            said,
            ("num_replicas=world_size // 2", "different batches", "index out of range",
             "out of bounds", "leave state_dict out", "create_graph=True", "different weights",
             "different seed"),
            strict=True,
        ):  # fmt: skip
            assert wanted in found


def test_all_tokens_of_the_vocabulary_are_known() -> None:
    assert int(batch()[0].max()) < VOCAB
