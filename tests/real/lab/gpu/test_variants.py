"""Other frameworks' kernels: every one has a work, and small ones compute what they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from lab.gpu import variant_works
from lab.gpu.cases import preset_cases
from lab.gpu.variant_works import MAKERS, Sizes
from lab.gpu.variants import PRESETS, preset_variants, query_variants
from simulator.ops import Attention, Gemm, Pointwise, Signature

SIZES = Sizes(tokens=24, hidden_size=16, vocab=40, seq_length=8)
LOGITS = 24 * 40
SCORES = 2 * 3 * 8 * 8
"""Of two heads of three sequences."""

ON_CPU: dict[str, Signature] = {
    "copy": Pointwise("copy", 64, 96, kernels=2),
    "grad_add": Pointwise("grad_add", 600, 400),
    "grad_scale": Pointwise("grad_scale", 400, 400),
    "zero_grads": Pointwise("zero_grads", 0, 400),
    "adam": Pointwise("adam", 1600, 1200),
    "embedding_bwd": Pointwise("embedding_bwd", 768, 1280),
    "fused_cross_entropy loss.max": Pointwise("fused_cross_entropy", 2 * LOGITS, 96),
    "fused_cross_entropy loss.sum": Pointwise("fused_cross_entropy", 2 * LOGITS, 192),
    "fused_cross_entropy loss.grad": Pointwise("fused_cross_entropy", 2 * LOGITS, 2 * LOGITS),
    "unfused_cross_entropy loss.max": Pointwise("unfused_cross_entropy", 6 * LOGITS, 4 * LOGITS),
    "unfused_cross_entropy loss.sum": Pointwise("unfused_cross_entropy", 16 * LOGITS, 12 * LOGITS),
    "unfused_cross_entropy loss.grad": Pointwise("unfused_cross_entropy", 12 * LOGITS, 6 * LOGITS),
    "softmax": Pointwise("softmax", 2 * SCORES, 2 * SCORES),
    "softmax_bwd": Pointwise("softmax_bwd", 4 * SCORES, 2 * SCORES),
    "dropout": Pointwise("dropout", 2 * SCORES, 3 * SCORES),
    "dropout_bwd": Pointwise("dropout_bwd", 3 * SCORES, 2 * SCORES),
    "gemm": Gemm(6 * 8, 4, 8),
    "attention": Attention(2, 4, 2, 4, 8, kv_seq=8, direction="backward", deterministic=True),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_everything_that_others_launch_has_a_work(preset: str) -> None:
    case = next(c for c in preset_cases(float("inf")) if c.tp == 8 and c.model.name == preset)
    variants = preset_variants(case)
    assert [v.signature for v in variants if v.make is None] == []
    assert any(isinstance(v.signature, Attention) and v.signature.deterministic for v in variants)
    assert not any(isinstance(v.signature, Gemm) and v.signature.accumulate for v in variants)


def test_all_makers_are_tried_here() -> None:
    assert set(ON_CPU) == set(MAKERS)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled formulas: checking what they compute needs no compiler."""
    monkeypatch.setattr(variant_works, "compiled", lambda function: function)
    monkeypatch.setattr(variant_works, "device", lambda: torch.device("cpu"))


def _bytes(result: Any) -> int:
    tensors = result if isinstance(result, tuple) else (result,)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ON_CPU)
def test_a_work_writes_what_its_signature_says(name: str) -> None:
    signature = ON_CPU[name]
    work = MAKERS[name](signature, SIZES)
    work(0)
    result: Any = work(1)
    if isinstance(signature, Pointwise) and name not in ("copy", "adam") and "unfused" not in name:
        assert _bytes(result) == signature.bytes_written
    if isinstance(signature, Gemm):
        assert _bytes(result) == 2 * signature.m * signature.n
    if isinstance(signature, Attention):
        assert [tuple(one.shape) for one in result] == [(2, 4, 4, 8), (2, 2, 8, 8), (2, 2, 8, 8)]
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("eager")
def test_passes_of_cross_entropy_make_its_gradient() -> None:
    logits = torch.randn(24, 40).to(torch.bfloat16)
    targets = torch.randint(0, 40, (24,))
    top = variant_works._largest(logits)
    total, target = variant_works._sums(logits, top, targets)
    leaf = logits.float().requires_grad_()
    loss = F.cross_entropy(leaf, targets, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.allclose((total.log() - target).sum(), loss)
    assert leaf.grad is not None
    ours = variant_works._logits_gradient(logits, top, total, targets)
    assert torch.allclose(ours.float(), leaf.grad, atol=4e-3)


@pytest.mark.usefixtures("eager")
def test_unfused_cross_entropy_ends_in_shares() -> None:
    work: Callable[[int], Any] = MAKERS["unfused_cross_entropy loss.sum"](
        ON_CPU["unfused_cross_entropy loss.sum"], SIZES
    )
    assert torch.allclose(work(0).sum(dim=-1), torch.ones(24))


def test_queries_of_a_part_meet_all_keys_before_them() -> None:
    signatures = [variant.signature for variant in query_variants()]
    assert len(set(signatures)) == len(signatures) == 2 * (7 + 7 + 3)
    for one in signatures:
        assert isinstance(one, Attention)
        assert one.keys > one.seq
