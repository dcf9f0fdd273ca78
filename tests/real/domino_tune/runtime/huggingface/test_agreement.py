"""Applied plans against ``transformers`` itself: one process with the same weights and batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.real.domino_tune.runtime.huggingface.agreed import Job, expected, whole_model, worst
from tests.real.domino_tune.runtime.huggingface.models import CONFIGS, PLANS, model_of
from tests.real.domino_tune.runtime.huggingface.ranks import (
    Found,
    agreement,
    applied,
    on_ranks,
    passes,
)

BF16 = {"dtype": torch.bfloat16}
EXACT: list[Job] = [
    *((name, plan, {}) for name in CONFIGS for plan in ("unsliced sp", "rows", "sequences sp")),
    *(("llama", plan, {}) for plan in PLANS),
    *((name, "rows sp", {"recompute": kind}) for name in ("qwen3", "gpt2")
      for kind in ("selective", "full")),
    ("qwen2", "rows", {"micro_batches": 3}),
]  # fmt: skip
ROUNDED: list[Job] = [
    *((name, "rows sp", BF16) for name in CONFIGS),
    ("llama", "rows", {**BF16, "main_grads": True, "micro_batches": 2}),
    ("llama", "rows sp", {"autocast": True}),
    ("gpt2", "sequences", {"autocast": True}),
]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[Found]]]:
    """What both ranks found of EXACT, and of ROUNDED."""
    found = on_ranks(tmp_path_factory.mktemp("ranks"), 2, agreement, 2, EXACT + ROUNDED)
    return {rank: [one[: len(EXACT)], one[len(EXACT) :]] for rank, one in enumerate(found)}


def test_two_ranks_give_what_transformers_gives(on_two: dict[int, list[list[Found]]]) -> None:
    """Loss, logits, every gradient and the clipped norm, on both ranks."""
    for exact, _ in on_two.values():
        for job, found in zip(EXACT, exact, strict=True):
            off = worst(found, expected(job))
            assert max(off.values()) <= 1e-5, (job, max(off, key=off.__getitem__), off)


def test_bf16_differs_by_its_rounding(on_two: dict[int, list[list[Found]]]) -> None:
    """No further from fp32 than twice what ``transformers`` itself is in bf16."""
    for _, rounded in on_two.values():
        for job, found in zip(ROUNDED, rounded, strict=True):
            name, _, options = job
            own = passes(
                model_of(name, options.get("dtype", torch.float32)),
                autocast=options.get("autocast", False),
                micro_batches=options.get("micro_batches", 1),
            )
            ours, theirs = (worst(one, expected(job)) for one in (found, own))
            for what in ("logits", "evaluated"):
                assert ours[what] <= 2 * theirs[what] + 1e-3, (job, what, ours[what], theirs[what])
            mean = {w: sum(off.values()) / len(off) for w, off in (("a", ours), ("b", theirs))}
            assert mean["a"] <= 2 * mean["b"] + 1e-3, (job, mean)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("plan", ["unsliced", "rows", "sequences"])
def test_one_process_gives_what_transformers_gives(name: str, plan: str) -> None:
    off = worst(passes(applied(name, plan, 1)), whole_model(name, False, 1))
    assert max(off.values()) <= 1e-5, (max(off, key=off.__getitem__), off)


def test_gradients_of_bf16_weights_can_add_up_in_fp32() -> None:
    model = applied("llama", "rows", 1, dtype=torch.bfloat16, main_grads=True)
    off = worst(passes(model, micro_batches=3), whole_model("llama", True, 3))
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    assert max(off.values()) < 0.2
    layers = [grad for name, grad in grads.items() if ".layers." in name]
    assert layers
    assert all((grad != grad.to(torch.bfloat16)).any() for grad in layers), "rounded on the way"
