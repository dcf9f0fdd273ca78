"""Dropout in front of the stack, the same on all ranks of a tensor-parallel group."""

from __future__ import annotations

from types import MethodType

import torch
from torch import nn

from domino_tune.runtime.ops.dropout import keep_mask


def drop_alike(module: nn.Module, seed: int, dp_rank: int) -> None:
    """Let ``module``, a Dropout, draw its masks from ``seed``, the replica and its count of calls.

    Torch would draw them from each rank's own generator, and the ranks' activations would differ.
    """
    calls = 0

    def forward(dropout: nn.Dropout, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        if not dropout.training or dropout.p == 0:
            return x
        calls += 1
        sequences, length, hidden = x.shape
        mask = keep_mask(
            range(dp_rank * sequences, (dp_rank + 1) * sequences), (length, hidden), dropout.p,
            seed=seed, step=calls, site="embed", device=x.device,
        )  # fmt: skip
        return x * mask.view_as(x) / (1 - dropout.p)

    module.forward = MethodType(forward, module)
