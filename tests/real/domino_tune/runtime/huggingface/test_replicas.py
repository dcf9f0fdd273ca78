"""Replicas of an applied model: means of gradients, which are under way during backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.real.domino_tune.runtime.huggingface.models import model_of
from tests.real.domino_tune.runtime.huggingface.rank_replicas import (
    Gradients,
    halves,
    head_alone,
    in_bf16,
    loss_of,
    order_of_events,
    surrounded,
    two_micro_batches,
)
from tests.real.domino_tune.runtime.huggingface.ranks import on_ranks, whole, whole_gradients

WEIGHTS = {
    "llama": (["sum of 4800", "sum of 32"], "sum of 7680", ["sum of 192", "sum of 4800"]),
    "gpt2": (
        ["sum of 32", "sum of 32"], "sum of 12288", ["sum of 1248", "sum of 2048", "sum of 4800"],
    ),
}  # fmt: skip
"""Model -> sums of what is behind the layers, of a layer's matrices, of all else."""


def assert_close(found: Gradients, wanted: Gradients) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name


def of_one_process(name: str, deed: Callable[[Any], object]) -> Gradients:
    model = model_of(name)
    deed(model)
    return whole_gradients(model)


def mean_of(numbers: tuple[int, ...]) -> Callable[[Any], object]:
    """Return what adds up half of the gradient of each batch: two replicas' mean."""
    return lambda model: [(loss_of(model, number) / 2).backward() for number in numbers]


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize(
    ("tp", "name", "plan"),
    [(2, "llama", "rows sp"), (1, "llama", "rows"), (2, "gpt2", "rows"), (1, "gpt2", "inter"),
     (2, "qwen2", "sequences sp")],
)  # fmt: skip
def test_replicas_average_their_gradients(tp: int, name: str, plan: str, tmp_path: Path) -> None:
    """Two replicas of two micro-batches: the mean over replicas of the sums of gradients."""
    wanted = of_one_process(name, mean_of((0, 1, 2, 3)))
    for found in on_ranks(tmp_path, 2 * tp, two_micro_batches, tp, name, plan):
        assert_close(found, wanted)


def test_replicas_average_what_is_trained_without_the_layers(tmp_path: Path) -> None:
    """A head alone, as in linear probing: backward does not reach the layers."""
    wanted = of_one_process("llama", mean_of((0, 1)))
    for found in on_ranks(tmp_path, 2, head_alone, 1):
        assert_close(found, {"lm_head.weight": wanted["lm_head.weight"]})


def test_what_users_do_around_backward(tmp_path: Path) -> None:
    both = on_ranks(tmp_path, 2, surrounded)
    one, two = of_one_process("llama", mean_of((0, 1))), of_one_process("llama", mean_of((2, 3)))
    sums = {name: one[name] + two[name] for name in one}
    hooked = dict(sums)
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        clamped = [of_one_process("llama", mean_of((number, number)))[name] for number in range(4)]
        hooked[name] = torch.stack([one.clamp(-1e-3, 1e-3) for one in clamped]).sum(0) / 2
    between = {n: one[n] if ".layers.1." in n else sums[n] for n in sums}

    def used(model: Any) -> None:
        for number in (0, 1):
            weight = model.model.layers[1].mlp.up_proj.weight
            (loss_of(model, number) * (1 + weight.square().sum()) / 2).backward()

    wanted = {
        "twice in one pass": sums, "zeros kept": one, "averaged, then more": sums,
        "a hook": hooked, "another use": of_one_process("llama", used), "frozen between": between,
        "autograd.grad": one,
    }  # fmt: skip
    for found in both:
        assert found.keys() == wanted.keys()
        for name, gradients in wanted.items():
            assert_close(found[name], gradients)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("accumulates", [True, False])
@pytest.mark.parametrize("name", WEIGHTS)
def test_sums_are_under_way_during_backward(name: str, accumulates: bool, tmp_path: Path) -> None:
    """A layer's begins when its last weight gradient is computed: before the last norm of that
    layer, and all ops of those in front of it. Nothing is copied."""
    head, layer, rest = WEIGHTS[name]
    for events, views in on_ranks(tmp_path, 2, _events, name, accumulates):
        assert events == [
            *head, "l2", layer, "l2", "l1", layer, "l1", "l0", layer, "l0", *rest,
        ]  # fmt: skip
        assert views


def _events(rank: int, name: str, accumulates: bool) -> tuple[list[str], bool]:
    return order_of_events(rank, name, accumulates=accumulates)


def test_gradients_in_bf16_are_the_mean_of_both_replicas(tmp_path: Path) -> None:
    """Vectors, too, of which tensor-parallel ranks hold parts of the sum."""
    for found, wanted in on_ranks(tmp_path, 4, in_bf16, 2):
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == torch.bfloat16
            assert torch.allclose(one, other, rtol=2**-6, atol=1e-5)


def test_gradients_are_divided_before_they_are_added(tmp_path: Path) -> None:
    for found in on_ranks(tmp_path, 2, halves):
        assert torch.allclose(whole(found), torch.full((8,), 40500.0, dtype=torch.float16))
