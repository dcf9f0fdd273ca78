"""Gradients of a stack in the dtype of its parameters, without a whole copy in fp32."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from domino_tune.runtime.shards import Shards, main_dtype_of

Tensor = torch.Tensor


class _Sums(dict[str, Tensor]):
    """Sums by name, each allocated at its first use."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like = like

    def __missing__(self, name: str) -> Tensor:
        view = self._like[name]
        self[name] = torch.empty(view.shape, dtype=main_dtype_of(view.dtype), device=view.device)
        return self[name]


class RoundedShards(Shards):
    """Shards that share the weights of ``like`` and have their gradients in ``flat``.

    ``products``: how many GEMMs add to each matrix. A single one writes to ``flat`` itself, if that
    has the dtype of its operands. Several add up in fp32 and are rounded after the last. Vectors
    are rounded at the end: they are small, and a rank may hold only a part of their sum.
    """

    def __init__(self, like: Shards, flat: Tensor, products: Mapping[str, int]) -> None:
        self.__dict__.update(like.__dict__)
        self.grad, self._rounded = flat, self._views(flat)
        self._left = dict(products)
        self.grads = sums = _Sums(self._rounded)
        direct = flat.dtype == like.model_copy.dtype
        for name, view in self._rounded.items():
            if self._left.get(name) == 1 and direct:
                sums[name] = view
            elif name not in self._left:
                sums[name]

    def added(self, name: str) -> None:
        """Round the gradient of a matrix after its last product."""
        self._left[name] -= 1
        if not self._left[name]:
            self._round(name)

    def finished(self) -> Mapping[str, Tensor]:
        """Return all gradients, rounded."""
        for name in [*self.grads]:
            self._round(name)
        return self._rounded

    def _round(self, name: str) -> None:
        sums = self.grads.pop(name)
        if sums is not self._rounded[name]:
            self._rounded[name].copy_(sums)
