"""Triton's pointwise kernels on a CUDA device, beside the formulas, at sizes of real models."""

from __future__ import annotations

import pytest
import torch

from domino_tune.runtime.ops import pointwise_formulas
from domino_tune.runtime.ops.pointwise import pointwise_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device"),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.01}
TOKENS = 300
Tensor = torch.Tensor


def _drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def _same(ours: Tensor, theirs: Tensor) -> None:
    error = float((ours - theirs).double().abs().max() / theirs.double().abs().max())
    assert error <= TOLERANCE[ours.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [640, 5120, 16384])
def test_norms(dtype: torch.dtype, width: int) -> None:
    kernels, formulas = pointwise_for(torch.device("cuda")), pointwise_formulas
    x, dy, residual = (_drawn(dtype, TOKENS, width) for _ in range(3))
    weight = _drawn(dtype, width)
    (y, rstd), (y2, rstd2) = (f.rms_norm(x, weight, 1e-5) for f in (kernels, formulas))
    _same(y, y2)
    for added in (None, residual):
        ours = kernels.rms_norm_grad(dy, x, weight, rstd, added)
        theirs = formulas.rms_norm_grad(dy, x, weight, rstd2, added)
        _same(ours[0], theirs[0])
        _same(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dropout_and_residual_of_column_pieces_in_a_graph(dtype: torch.dtype) -> None:
    kernels = pointwise_for(torch.device("cuda"))
    whole, bias = _drawn(dtype, TOKENS, 5120), _drawn(dtype, 5120)
    parts = [_drawn(dtype, TOKENS, 2560) for _ in range(2)]
    mask = torch.rand(TOKENS, 5120, device="cuda") > 0.1
    ours, theirs = torch.empty_like(whole), torch.empty_like(whole)

    def play(functions: object, result: Tensor) -> None:
        for index, part in enumerate(parts):
            columns = slice(2560 * index, 2560 * (index + 1))
            functions.dropout_add(  # type: ignore[attr-defined]
                part, bias[columns], mask[:, columns], 0.9, whole[:, columns], result[:, columns]
            )

    play(kernels, ours)  # compiled outside of the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        play(kernels, ours)
    ours.zero_()
    graph.replay()
    play(pointwise_formulas, theirs)
    _same(ours, theirs)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotary_embedding_and_swiglu(dtype: torch.dtype) -> None:
    kernels, formulas = pointwise_for(torch.device("cuda")), pointwise_formulas
    packed, cosine = _drawn(dtype, TOKENS, 15 * 128), _drawn(dtype, 100, 1, 64)
    sine = _drawn(dtype, 100, 1, 64)
    ours, theirs = packed.clone(), packed.clone()
    for functions, rotated in ((kernels, ours), (formulas, theirs)):
        functions.rotate(rotated, 10, cosine, sine, -1.0)
    _same(ours, theirs)
    assert torch.equal(ours[:, 1280:], packed[:, 1280:])
    a, dcore = _drawn(dtype, TOKENS, 2 * 1728), _drawn(dtype, TOKENS, 1728)
    acts, grads = ([torch.empty_like(like) for _ in range(2)] for like in (dcore, a))
    for functions, act, grad in zip((kernels, formulas), acts, grads, strict=True):
        functions.swiglu(a, act)
        functions.swiglu_grad(dcore, a, grad)
    _same(*acts)
    _same(*grads)
