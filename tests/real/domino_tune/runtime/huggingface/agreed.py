"""What ``transformers`` gives in one process, and how far what ranks found is from it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tests.real.domino_tune.runtime.huggingface.models import model_of
from tests.real.domino_tune.runtime.huggingface.ranks import Found, passes

Job = tuple[str, str, dict[str, Any]]
"""Model, plan, and options of ``apply`` and of the passes."""


@cache
def whole_model(name: str, rounded: bool, micro_batches: int) -> Found:
    """What ``transformers`` gives, in fp32 of weights that may have been rounded to bf16."""
    model = model_of(name, torch.bfloat16 if rounded else torch.float32).float()
    return passes(model, micro_batches=micro_batches)


def expected(job: Job) -> Found:
    name, _, options = job
    return whole_model(name, "dtype" in options, options.get("micro_batches", 1))


def worst(found: Found, wanted: Found) -> dict[str, float]:
    """The largest differences, relative to the largest number of a tensor."""

    def off(a: Any, b: Any) -> float:
        return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-9))

    assert found.gradients.keys() == wanted.gradients.keys()
    return {
        "loss": abs(found.loss / wanted.loss - 1),
        "logits": off(found.logits, wanted.logits),
        "evaluated": off(found.evaluated, wanted.evaluated),
        "norm": abs(found.norm / wanted.norm - 1),
        **{name: off(g, wanted.gradients[name]) for name, g in found.gradients.items()},
    }
