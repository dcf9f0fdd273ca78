"""Megatron's operators f and g (arXiv 1909.08053) as autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

Tensor = torch.Tensor


class _ColumnParallel(torch.autograd.Function):
    """x·Wᵀ + b with rows of W on this rank. Backward is f: it sums x's gradient over the ranks
    while W's is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy = gradients[0].flatten(0, -2)
        dx = dy @ weight
        work = dist.all_reduce(dx, group=ctx.group, async_op=True)
        dweight = dy.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        dbias = dy.sum(0) if ctx.has_bias else None
        work.wait()
        return dx.view_as(x), dweight, dbias, None


class _AllReduce(torch.autograd.Function):
    """g: forward a sum over the ranks, in place; backward the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def column_parallel(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup
) -> Tensor:
    """Return x·Wᵀ + b, [..., this rank's outputs], of an ``x`` that all ranks have."""
    y: Tensor = _ColumnParallel.apply(x, weight, bias, group)  # type: ignore[no-untyped-call]
    return y


def summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of ``x`` over the ranks, in place."""
    y: Tensor = _AllReduce.apply(x, group)  # type: ignore[no-untyped-call]
    return y
