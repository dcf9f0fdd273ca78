"""Pointwise ops of a layer as torch formulas, one kernel per operator: CPU, or CUDA without Triton.

``pointwise_kernels`` has the same functions with one kernel each. Tensors are [tokens, width] and
contiguous unless stated otherwise. Sums run in fp32; in fp64 where tensors are fp64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def wide(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in fp32, or fp64 when computing in fp64, for sums of many elements."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x / RMS(x) · weight, in ``y`` or a new tensor, and each token's 1 / RMS."""
    wide_x = wide(x)
    rstd = torch.rsqrt(wide_x.square().mean(-1, keepdim=True) + eps)
    return torch.mul((wide_x * rstd).to(x.dtype), weight, out=y), rstd


def rms_norm_grad(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, residual: Tensor | None,
    dx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, plus ``residual``, in ``dx`` or a new tensor, and of the weight
    (fp32 or fp64)."""
    dy = wide(dy)
    normed = wide(x) * rstd
    scaled = dy * weight
    found = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * rstd
    dweight = (dy * normed).sum(0)
    found = found.to(x.dtype)
    if residual is not None:
        return torch.add(found, residual, out=dx), dweight
    return found if dx is None else dx.copy_(found), dweight


def dropout_add(
    part: Tensor, bias: Tensor | None, mask: Tensor | None, keep: float, residual: Tensor,
    result: Tensor,
) -> None:  # fmt: skip
    """Write residual + dropout(part + bias) into ``result``. All but ``part`` may be columns of
    wider tensors; ``keep`` is the probability that ``mask`` is True."""
    if bias is not None:
        part = part + bias
    if mask is not None:
        part = part * mask / keep
    torch.add(part, residual, out=result)


def dropout_grad(dy: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Return the gradient of dropout's input."""
    return dy * mask / keep


def rotate(packed: Tensor, heads: int, cosine: Tensor, sine: Tensor, sign: float) -> None:
    """Rotate the first ``heads`` heads of [tokens, any] in place by their positions' angles times
    ``sign``. ``cosine`` and ``sine`` are [seq_length, 1, head_dim / 2]; a head's halves are paired.
    """
    seq, _, half = cosine.shape
    rotated = packed[:, : heads * 2 * half].view(-1, seq, heads, 2 * half)
    first, second = rotated.chunk(2, dim=-1)
    old_first = first.clone()
    first.mul_(cosine).sub_(second * sine, alpha=sign)
    second.mul_(cosine).add_(old_first * sine, alpha=sign)


def swiglu(fc1: Tensor, act: Tensor) -> None:
    """Write SiLU(gate) · up of ``fc1``, [tokens, gate then up], to ``act``."""
    gate, up = fc1.chunk(2, dim=1)
    torch.mul(F.silu(gate), up, out=act)


def swiglu_grad(dact: Tensor, fc1: Tensor, dfc1: Tensor) -> None:
    """Write the gradient of ``fc1`` to ``dfc1``."""
    gate, up = fc1.chunk(2, dim=1)
    torch.mul(dact, F.silu(gate), out=dfc1[:, gate.shape[1] :])
    dfc1[:, : gate.shape[1]] = torch.ops.aten.silu_backward(dact * up, gate)
