"""The runtime's pointwise kernels for autograd: for plain layers that use the same kernels."""

from __future__ import annotations

from typing import Any

import torch

from domino_tune.runtime.ops.pointwise import PointwiseFunctions

Tensor = torch.Tensor


def norm_branch(
    functions: PointwiseFunctions, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return RMSNorm of ``x``, and ``x`` itself for the residual: backward, one kernel adds both
    gradients."""
    y, residual = _NormBranch.apply(functions, x, weight, eps)  # type: ignore[no-untyped-call]
    return y, residual


def rotate(
    functions: PointwiseFunctions, packed: Tensor, heads: int, cosine: Tensor, sine: Tensor
) -> Tensor:
    """Apply rotary embedding in place to [tokens, heads and more]."""
    rotated: Tensor = _Rotate.apply(functions, packed, heads, cosine, sine)  # type: ignore[no-untyped-call]
    return rotated


def swiglu(functions: PointwiseFunctions, fc1: Tensor) -> Tensor:
    """Return SiLU of one half times the other."""
    act: Tensor = _SwiGlu.apply(functions, fc1)  # type: ignore[no-untyped-call]
    return act


def dropout_add(
    functions: PointwiseFunctions, part: Tensor, bias: Tensor | None, mask: Tensor | None,
    keep: float, residual: Tensor,
) -> Tensor:  # fmt: skip
    """Return residual + dropout(part + bias)."""
    added: Tensor = _DropoutAdd.apply(functions, part, bias, mask, keep, residual)  # type: ignore[no-untyped-call]
    return added


class _NormBranch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: PointwiseFunctions, x: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        y, rstd = functions.rms_norm(x, weight, eps)
        ctx.functions = functions
        ctx.save_for_backward(x, weight, rstd)
        return y, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor, None]:
        x, weight, rstd = ctx.saved_tensors
        dx, dweight = ctx.functions.rms_norm_grad(gradients[0], x, weight, rstd, gradients[1])
        return None, dx, dweight.to(weight.dtype), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: PointwiseFunctions, packed: Tensor, heads: int, cosine: Tensor,
        sine: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.mark_dirty(packed)
        functions.rotate(packed, heads, cosine, sine, 1.0)
        ctx.functions, ctx.heads = functions, heads
        ctx.save_for_backward(cosine, sine)
        return packed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None, None]:
        gradient = gradients[0].contiguous()  # autograd joined it from three heads: no other reads
        ctx.functions.rotate(gradient, ctx.heads, *ctx.saved_tensors, -1.0)
        return None, gradient, None, None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, functions: PointwiseFunctions, fc1: Tensor) -> Tensor:
        ctx.functions = functions
        ctx.save_for_backward(fc1)
        return functions.swiglu(fc1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (fc1,) = ctx.saved_tensors
        return None, ctx.functions.swiglu_grad(gradients[0], fc1)


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: PointwiseFunctions, part: Tensor, bias: Tensor | None,
        mask: Tensor | None, keep: float, residual: Tensor,
    ) -> Tensor:  # fmt: skip
        result = torch.empty_like(residual)
        functions.dropout_add(part, bias, mask, keep, residual, result)
        ctx.functions, ctx.mask, ctx.keep, ctx.has_bias = functions, mask, keep, bias is not None
        return result

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[None, Tensor, Tensor | None, None, None, Tensor]:
        dy = gradients[0]
        dpart = dy if ctx.mask is None else ctx.functions.dropout_grad(dy, ctx.mask, ctx.keep)
        return None, dpart, dpart.sum(0) if ctx.has_bias else None, None, None, dy
