"""A rank's shards of full matrices: views into one flat tensor of weights and one of gradients.

The flat order is that of the parameters' specs. Those that are summed over replicas together stand
side by side, so that a data-parallel bucket needs no copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, Literal

import torch

from simulator.issue_order import ROW_PARALLEL

Cut = Literal["rows", "columns", "none"]
INIT_STD: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter. ``shape`` is the full shape. ``groups`` are the heights of stacked matrices
    that are cut separately (q, k and v; gate and up)."""

    name: str
    owner: int
    shape: tuple[int, ...]
    cut: Cut = "none"
    groups: tuple[int, ...] = ()
    init: float = INIT_STD
    constant: float | None = None

    @property
    def is_matrix(self) -> bool:
        """Return whether its gradient is a GEMM's."""
        return self.cut != "none" and len(self.shape) > 1

    def local_size(self, tp: int) -> int:
        """Return the elements of one rank's shard."""
        return math.prod(self.local_shape(tp))

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Return the shape of one rank's shard."""
        if self.cut == "rows":
            return (self.shape[0] // tp, *self.shape[1:])
        if self.cut == "columns":
            return (self.shape[0], self.shape[1] // tp)
        return self.shape


EDGES: Final = -1
_NORMS: Final = (".norm", ".norm.bias")
_ROW_PARALLEL_BIASES: Final = tuple(f".{linear}.bias" for linear in ROW_PARALLEL.values())
_ADDED: Final = (".bias", "norm", "w.positions")


def main_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of main gradients where ``dtype`` is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Shards:
    """Weights and gradients by name: views of ``model_copy`` and of ``grad``, flat tensors; without
    ``grad`` there are weights alone.

    ``weights[name]`` has the compute dtype, ``grads[name]`` is fp32 (fp64 when computing in fp64).
    ``ranges``: (start, end) of each parameter; ``whole``: of replicated ones, neighbours joined.
    """

    steps = 0
    step_count: torch.Tensor

    def __init__(
        self,
        specs: Sequence[ParameterSpec],
        tp: int,
        weights: torch.Tensor,
        grad: torch.Tensor | None = None,
    ) -> None:
        self.specs = specs
        self.tp = tp
        self.ranges: list[tuple[int, int]] = []
        self.whole: list[tuple[int, int]] = []
        start = 0
        for spec in specs:
            end = start + spec.local_size(tp)
            self.ranges.append((start, end))
            if spec.cut == "none":
                self._add_whole(start, end)
            start = end
        self.model_copy = weights
        self.weights = self._views(weights)
        self.grad = weights.new_empty(0) if grad is None else grad
        self.grads = {} if grad is None else self._views(grad)

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            spec.name: flat[start:end].view(spec.local_shape(self.tp))
            for spec, (start, end) in zip(self.specs, self.ranges, strict=True)
        }

    def with_weights(self, weights: torch.Tensor) -> Shards:
        """Return the same with other weights."""
        found = copy(self)
        found.model_copy, found.weights = weights, self._views(weights)
        return found

    def added(self, name: str) -> None:
        """Hear that a product was added to the gradient of a matrix."""

    @property
    def device(self) -> torch.device:
        """Return the device of weights and gradients."""
        return self.model_copy.device

    def _add_whole(self, start: int, end: int) -> None:
        if self.whole and self.whole[-1][1] == start:
            start = self.whole.pop()[0]
        self.whole.append((start, end))

    def partial_grads(self, *, shards_tokens: bool) -> list[torch.Tensor]:
        """Return the gradients that are only partial sums on each rank: those of queries' and keys'
        norms, summed over its heads; if ranks shard the tokens, also those of all norms and
        row-parallel biases."""
        by_tokens = (*_NORMS, *_ROW_PARALLEL_BIASES) if shards_tokens else ()
        partial = (".qk_norm", *by_tokens)
        return [grad for name, grad in self.grads.items() if name.endswith(partial)]

    def clear_added(self) -> None:
        """Zero the gradients that ops only add to: those of norms, biases and positions. The first
        weight gradient of a step overwrites those of matrices."""
        added = [grad for name, grad in self.grads.items() if name.endswith(_ADDED)]
        torch._foreach_zero_(added)
