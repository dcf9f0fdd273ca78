"""Bytes of an applied model: gradients that are rounded one by one, and casts that are kept."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from domino_tune.runtime import apply
from simulator.errors import InputError
from tests.real.domino_tune.runtime.huggingface.models import PLANS, batch, model_of, plan_for
from tests.real.domino_tune.runtime.huggingface.ranks import applied
from tests.support.torch_bytes import peak_bytes

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}


def backward_bytes(**options: Any) -> tuple[int, int]:
    """Return the most bytes that backward of a wide model makes, and the parameters of its
    layers."""
    model = model_of("llama", torch.bfloat16, **WIDE)
    model = apply(model, plan_for(model, PLANS["inter"], 1), **options)
    ids, labels = batch(sequences=2)
    loss = model(input_ids=ids, labels=labels).loss
    count = sum(one.numel() for one in model.model.layers.parameters())
    return peak_bytes(loss.backward), count


def test_gradients_in_bf16_never_stand_in_fp32_as_a_whole() -> None:
    narrow, count = backward_bytes()
    wide, _ = backward_bytes(main_grads=True)
    assert wide >= 4 * count
    assert narrow < 0.65 * wide  # 2 bytes a parameter, and activations; it was 6
    assert narrow < 2.7 * count


@pytest.mark.parametrize("plan", ["unsliced", "inter"])
def test_matrices_of_one_product_and_of_several_are_rounded_alike(plan: str) -> None:
    ids, labels = batch()
    found = []
    for main_grads in (False, True):
        model = applied("llama", plan, 1, dtype=torch.bfloat16, main_grads=main_grads)
        model(input_ids=ids, labels=labels).loss.backward()
        found.append([one.grad for one in model.model.layers.parameters()])
    for narrow, wide in zip(*found, strict=True):
        assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(narrow, wide.to(torch.bfloat16))


def autocast_loss(model: Any, number: int = 0) -> torch.Tensor:
    ids, labels = batch(number)
    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = model(input_ids=ids, labels=labels).loss
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def test_weights_are_cast_once_a_step() -> None:
    model = applied("llama", "rows", 1)
    casts, seen = model.model.layers.player.casts, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(6):
        autocast_loss(model, number)
        seen.append(casts._kept[1])
        if number % 3 == 2:
            optimizer.step()
            assert casts._kept is None
            optimizer.zero_grad(set_to_none=False)
    assert [one is two for one, two in pairwise(seen)] == [
        True, True, False, True, True,
    ]  # fmt: skip


def test_kept_casts_give_the_numbers_of_new_ones() -> None:
    found = []
    for keeps in (True, False):
        model = applied("llama", "rows", 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for number in range(6):
            if not keeps:
                model.model.layers.player.casts.drop()
            losses.append(autocast_loss(model, number))
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        found.append(torch.stack(losses))
    assert torch.equal(*found)


def test_changed_weights_are_cast_again() -> None:
    model = applied("llama", "rows", 1)
    before = autocast_loss(model)
    with torch.no_grad():
        for one in model.model.layers.parameters():
            one.mul_(1.5)
    after = autocast_loss(model)
    assert not torch.equal(before, after)
    model.zero_grad()
    assert torch.equal(autocast_loss(model), after)
    for one in model.model.layers.parameters():
        one.data.mul_(1 / 1.5)
    with pytest.raises(InputError, match=r"through \.data .*no_grad"):
        autocast_loss(model)
    model.zero_grad()
    assert torch.allclose(autocast_loss(model), before, rtol=1e-2)


def test_evaluation_keeps_no_cast() -> None:
    model = applied("llama", "rows", 1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(input_ids=batch()[0])
    assert model.model.layers.player.casts._kept is None
