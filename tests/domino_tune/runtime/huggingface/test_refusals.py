"""What apply and a model that plays a plan refuse, and how they say so."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from domino_tune.base.errors import RunError
from domino_tune.runtime import apply
from simulator.errors import InputError
from tests.domino_tune.runtime.huggingface.models import (
    LENGTH,
    PLANS,
    VOCAB,
    batch,
    model_of,
    plan_for,
)
from tests.domino_tune.runtime.huggingface.ranks import applied

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


def test_all_tokens_of_the_vocabulary_are_known() -> None:
    assert int(batch()[0].max()) < VOCAB
