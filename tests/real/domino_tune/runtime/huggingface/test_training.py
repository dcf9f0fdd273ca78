"""Training with applied plans: loss curves, checkpoints, frozen weights, dropout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

from domino_tune.runtime import apply, launch_spec
from tests.real.domino_tune.runtime.huggingface.models import PLANS, batch, model_of, plan_for
from tests.real.domino_tune.runtime.huggingface.ranks import (
    applied,
    curve,
    embeddings,
    frozen,
    half_frozen,
    on_ranks,
    on_the_lane,
    policies,
    resumed,
    trained,
    whole,
)


@pytest.mark.sampled(count=1)
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


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize(("name", "plan"), [("llama", "rows sp"), ("gpt2", "sequences")])
def test_a_run_that_is_resumed_goes_on_to_the_bit(name: str, plan: str, tmp_path: Path) -> None:
    for through, in_parts in on_ranks(tmp_path, 2, resumed, 2, name, plan, tmp_path / "kept"):
        assert in_parts == through


def test_frozen_parameters_get_no_gradient(tmp_path: Path) -> None:
    """Embeddings, a layer and one's MLP are frozen; backward runs though its input needs none."""
    theirs = {n: p.grad for n, p in half_frozen(model_of("llama")).named_parameters()}
    for ours in (frozen(0, 1), *on_ranks(tmp_path, 2, frozen, 2)):
        for name, grad in theirs.items():
            assert (name in ours) == (grad is not None), name
            if grad is not None:
                assert torch.allclose(ours[name], grad, rtol=1e-4, atol=1e-6), name


def test_a_model_in_evaluation_stays_there() -> None:
    """As from_pretrained returns it: nothing is dropped before train()."""
    model = model_of("gpt2", resid_pdrop=0.5).eval()
    wanted = model(input_ids=batch()[0]).logits
    played = apply(model, plan_for(model, PLANS["rows"], 1))
    assert torch.allclose(played(input_ids=batch()[0]).logits, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_a_model_without_weights_reads_them(name: str, tmp_path: Path) -> None:
    """In one process, with tied embeddings and, of GPT-2, a fused linear."""
    accelerate = pytest.importorskip("accelerate")
    theirs = model_of(name)
    theirs.save_pretrained(tmp_path)
    with accelerate.init_empty_weights():
        empty = type(theirs)(theirs.config)
    played = apply(empty, plan_for(theirs, PLANS["rows"], 1), weights=tmp_path)
    ids, labels = batch()
    for one in (played, theirs):
        one(input_ids=ids, labels=labels).loss.backward()
    ours, other = (
        torch.nn.utils.get_total_norm([p.grad for p in one.parameters() if p.grad is not None])
        for one in (played, theirs)
    )
    assert torch.allclose(ours, other, rtol=1e-4)


def test_the_layers_are_still_the_layers() -> None:
    """Only the model's own forward meets the stack as one."""
    layers = applied("llama", "rows", 1).model.layers
    assert [type(layer).__name__ for layer in layers] == ["LlamaDecoderLayer"] * 3
    assert [*layers[1:]] == [layers[1], layers[2]]
    assert layers[-1] is layers[2]


@pytest.mark.sampled
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "hooked"])
@pytest.mark.parametrize(("plan", "slices"), [("rows", 2), ("sequences sp", 3)])
def test_the_stack_gets_embeddings_slice_by_slice(
    plan: str, slices: int, scaled: bool, tmp_path: Path
) -> None:
    """Their sums over the ranks are under way then; who else computes with them gets them whole."""
    theirs = model_of("llama")
    if scaled:
        theirs.get_input_embeddings().register_forward_hook(lambda _, __, out: out * 1.5)
    ids, labels = batch()
    theirs(input_ids=ids, labels=labels).loss.backward()
    for parts, gradients in on_ranks(tmp_path, 2, embeddings, 2, plan, scaled):
        assert parts == (0 if scaled else slices)
        for name, parameter in theirs.named_parameters():
            assert torch.allclose(gradients[name], whole(parameter.grad), rtol=1e-4, atol=1e-6)


def test_sums_around_the_stack_are_on_its_lane_and_waited_for(tmp_path: Path) -> None:
    for found in on_ranks(tmp_path, 2, on_the_lane, 2):
        assert found == ({"embed", "head"}, True, True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has real-time priority")
def test_threads_of_collectives_are_urgent_where_that_is_allowed(tmp_path: Path) -> None:
    """As in the runtime's own loop: they share a core with compute."""
    own = os.sched_getscheduler(0)
    wanted = os.SCHED_RR if launch_spec.may_be_urgent() else own
    for lanes, main in on_ranks(tmp_path, 2, policies, 2):
        assert set(lanes) == {wanted}
        assert main == own


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
