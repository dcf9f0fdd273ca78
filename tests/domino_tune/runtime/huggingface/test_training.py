"""Training with applied plans: loss curves, checkpoints, replicas, frozen weights, dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

from tests.domino_tune.runtime.huggingface.models import batch, model_of
from tests.domino_tune.runtime.huggingface.ranks import (
    applied,
    curve,
    on_ranks,
    replicas,
    resumed,
    trained,
    whole,
)


@pytest.mark.parametrize(("name", "plan"), [("qwen3", "rows sp"), ("gpt2", "rows")])
def test_a_hundred_steps_and_a_saved_model(name: str, plan: str, tmp_path: Path) -> None:
    """AdamW with clipping follows the single process; what is saved gives the same logits."""
    found = on_ranks(tmp_path, 2, curve, 2, name, plan, 100, tmp_path / "saved")
    losses, _ = trained(model_of(name), 100)
    for one in found:
        assert one["losses"] == pytest.approx(losses, rel=1e-3)
    assert losses[-1] < losses[0] / 2
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    loaded.eval()
    with torch.no_grad():
        logits = loaded(input_ids=batch()[0]).logits
    assert torch.allclose(logits, found[0]["logits"], atol=1e-4)
    assert {p.name for p in (tmp_path / "saved").iterdir()} >= {"config.json", "model.safetensors"}


@pytest.mark.parametrize(("name", "plan"), [("llama", "rows sp"), ("gpt2", "sequences")])
def test_a_run_that_is_resumed_goes_on_to_the_bit(name: str, plan: str, tmp_path: Path) -> None:
    for through, in_parts in on_ranks(tmp_path, 2, resumed, 2, name, plan, tmp_path / "kept"):
        assert in_parts == through


def test_replicas_average_their_gradients(tmp_path: Path) -> None:
    """Two replicas of two micro-batches: the mean over replicas of the sums of gradients."""
    found = on_ranks(tmp_path, 2, replicas, 1, "llama", "rows")
    model = model_of("llama")
    for number in range(4):
        ids, labels = batch(number)
        (model(input_ids=ids, labels=labels).loss / 2).backward()
    for one in found:
        for name, parameter in model.named_parameters():
            assert torch.allclose(one[name], whole(parameter.grad), rtol=1e-4, atol=1e-6), name


def test_frozen_parameters_get_no_gradient() -> None:
    """Embeddings and one layer's MLP are frozen; backward runs though its input needs none."""
    models = [applied("llama", "rows", 1), model_of("llama")]
    for model in models:
        model.get_input_embeddings().requires_grad_(False)
        model.model.layers.get_submodule("1.mlp").requires_grad_(False)
        ids, labels = batch()
        model(input_ids=ids, labels=labels).loss.backward()
    ours, theirs = (dict(model.named_parameters()) for model in models)
    for name, parameter in theirs.items():
        grad = ours[name].grad
        assert (grad is None) == (parameter.grad is None), name
        if grad is not None:
            assert torch.allclose(grad, parameter.grad, rtol=1e-4, atol=1e-6), name


def _dropped(rank: int, tp: int, plan: str) -> list[float]:
    model = applied("gpt2", plan, tp, resid_pdrop=0.2, embd_pdrop=0.2).train()
    ids, labels = batch()
    return [model(input_ids=ids, labels=labels).loss.item() for _ in range(2)]


def test_dropout_draws_the_same_masks_however_the_model_is_cut(tmp_path: Path) -> None:
    alone = _dropped(0, 1, "rows")
    assert alone[0] != alone[1]
    for plan in ("unsliced sp", "sequences"):
        folder = tmp_path / plan
        folder.mkdir()
        for found in on_ranks(folder, 2, _dropped, 2, plan):
            assert found == pytest.approx(alone, rel=1e-5)


def test_a_batch_that_the_plan_cannot_slice_is_played_unsliced() -> None:
    """The last batch of an epoch: one sequence, of a plan of two row slices."""
    model, theirs = applied("llama", "rows", 1), model_of("llama")
    ids, labels = batch(sequences=1)
    for one in (model, theirs):
        one(input_ids=ids, labels=labels).loss.backward()
    for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(whole(ours.grad), whole(other.grad), rtol=1e-4, atol=1e-6)
