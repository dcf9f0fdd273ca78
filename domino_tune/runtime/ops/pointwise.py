"""The pointwise functions of a device, and dropout masks that no slicing changes."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch

from domino_tune.runtime.ops import pointwise_formulas

Tensor = torch.Tensor


class PointwiseFunctions(Protocol):
    """The functions of ``pointwise_formulas`` and ``pointwise_kernels``, described there."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, y: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return RMSNorm, written to ``y`` or to a new tensor, and 1 / RMS."""

    def rms_norm_grad(
        self, dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, residual: Tensor | None,
        dx: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the gradients of x, plus the residual's, written to ``dx`` or to a new tensor,
        and of the weight."""

    def dropout_add(
        self, part: Tensor, bias: Tensor | None, mask: Tensor | None, keep: float,
        residual: Tensor, result: Tensor,
    ) -> None:  # fmt: skip
        """Write bias, dropout and residual into ``result``."""

    def dropout_grad(self, dy: Tensor, mask: Tensor, keep: float) -> Tensor:
        """Return dropout's derivative, which is dropout by the same mask."""

    def rotate(self, packed: Tensor, heads: int, cosine: Tensor, sine: Tensor, sign: float) -> None:
        """Apply rotary embedding in place."""

    def swiglu(self, fc1: Tensor, act: Tensor) -> None:
        """Write SiLU of one half times the other to ``act``."""

    def swiglu_grad(self, dact: Tensor, fc1: Tensor, dfc1: Tensor) -> None:
        """Write the gradient of both halves to ``dfc1``."""


def pointwise_for(device: torch.device) -> PointwiseFunctions:
    """Return the functions for tensors on ``device``."""
    if device.type == "cuda" and has_triton():
        from domino_tune.runtime.lanes import kernels

        return kernels
    return pointwise_formulas


@cache
def has_triton() -> bool:
    """Return whether Triton kernels can be compiled."""
    return importlib.util.find_spec("triton") is not None


# Dropout masks that do not depend on how a batch is sliced ----------------------------------------
# A mask is drawn sequence by sequence from (seed, step, site, global sequence). The site names the
# layer and the place in it. Row slices are whole sequences, so every slicing draws the same masks,
# and so do all ranks of a tensor-parallel group.


def keep_mask(
    sequences: Sequence[int], shape: tuple[int, int], rate: float, *,
    seed: int, step: int | torch.Tensor, site: str, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return a bool mask [len(sequences) · tokens, hidden], True with probability 1 − ``rate``.

    ``shape`` is (tokens of a sequence, hidden size); ``sequences`` are consecutive. CPU and CUDA
    draw different masks. ``step`` may be a number on the device (needs Triton), which a captured
    graph reads at every replay.
    """
    if device.type == "cuda" and has_triton():
        from domino_tune.runtime.lanes.kernels import drawn_mask

        key = zlib.crc32(f"{seed}/{site}".encode())
        return drawn_mask(sequences, shape, rate, key=key, step=step, device=device)
    step = int(step)
    mask = torch.empty((len(sequences), *shape), dtype=torch.bool, device=device)
    generator = torch.Generator(device=device)
    for index, sequence in enumerate(sequences):
        generator.manual_seed(zlib.crc32(f"{seed}/{step}/{site}/{sequence}".encode()))
        mask[index].bernoulli_(1 - rate, generator=generator)
    return mask.view(-1, shape[1])
