"""torch.compile by inductor, which takes half a minute: what is around the layers is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.real.domino_tune.runtime.huggingface.models import batch, model_of
from tests.real.domino_tune.runtime.huggingface.ranks import applied, on_ranks, whole_gradients


def gradients(model: Any) -> dict[str, torch.Tensor]:
    ids, labels = batch()
    model(input_ids=ids, labels=labels).loss.backward()
    return whole_gradients(getattr(model, "_orig_mod", model))


def compiled(rank: int, tp: int) -> dict[str, torch.Tensor]:
    return gradients(torch.compile(applied("llama", "rows", tp)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_gives_the_gradients_of_the_plain_model(tmp_path: Path) -> None:
    wanted = gradients(model_of("llama"))
    for found in on_ranks(tmp_path, 2, compiled, 2):
        for name, gradient in wanted.items():
            assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name
