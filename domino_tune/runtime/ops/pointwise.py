"""Which pointwise functions a device plays: Triton's kernels on CUDA, else torch's formulas."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Protocol

import torch

from domino_tune.runtime.ops import pointwise_formulas

Tensor = torch.Tensor


class PointwiseFunctions(Protocol):
    """What ``pointwise_formulas`` and ``pointwise_kernels`` both have, and say more of."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """RMSNorm and 1 / RMS."""

    def rms_norm_grad(
        self, dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x, with the residual's, and of the weight."""

    def dropout_add(
        self, part: Tensor, bias: Tensor | None, mask: Tensor | None, keep: float,
        residual: Tensor, result: Tensor,
    ) -> None:  # fmt: skip
        """Bias, dropout and residual, into ``result``."""

    def dropout_grad(self, dy: Tensor, mask: Tensor, keep: float) -> Tensor:
        """Dropout's derivative, which is dropout by the same mask."""

    def turn(self, packed: Tensor, heads: int, cosine: Tensor, sine: Tensor, sign: float) -> None:
        """Rotary embedding, in place."""

    def swiglu(self, a: Tensor) -> Tensor:
        """SiLU of one half times the other."""

    def swiglu_grad(self, dcore: Tensor, a: Tensor) -> Tensor:
        """Gradient of both halves."""


def pointwise_for(device: torch.device) -> PointwiseFunctions:
    """The functions for tensors on ``device``."""
    if device.type == "cuda" and has_triton():
        from domino_tune.runtime.ops import pointwise_kernels

        return pointwise_kernels
    return pointwise_formulas


@cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled."""
    return importlib.util.find_spec("triton") is not None
